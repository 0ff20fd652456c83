"""`Space`: the prefix under which cq keeps its keys in a store, instead of the usual `cq/`."""

from __future__ import annotations

import re
from typing import Any, Final

from cq.encoding.codec import brief
from cq.errors import InvalidConfiguration
from cq.keys import ROOT
from cq.store.space_views import Placement, SpaceDatabase, SpaceReads, SpaceTransaction

MAX_PREFIX_BYTES: Final = 100
"""Limit of a prefix. The longest keys of cq leave room for it in the 10,000 bytes of a key."""

_NAME: Final = re.compile(r"(?!0x)[A-Za-z0-9][A-Za-z0-9_.-]{0,98}")
_HEX: Final = re.compile(r"0x([0-9A-Fa-f]{2})+")


class Space:
    """A part of a store with cq's queues, feeds, cells and workers, all below one prefix.

    Spaces in one store do not see each other. FoundationDB layers share a cluster in this way. A view of a database or
    a transaction moves the keys below `cq/` to the prefix, and passes all other keys on as they are, so that an
    application can use it for its own keys, too.

        space = cq.Space(fdb.directory.create_or_open(db, ("shop", "counts")))
        cq.configure(space.database(db), "words")

        @fdb.transactional
        def publish(tr, text):
            tr[b"texts/latest"] = text
            words.add(space.transaction(tr), Counter(text.decode().split()))

    Args:
        prefix: the prefix as bytes, used as they are; an `fdb.Subspace` or a directory, for its prefix; or a name of
            letters, digits, "_", "." and "-", which stands for the name and a slash. "0x" and hexadecimal digits are
            a prefix in bytes. No two spaces in use may have prefixes of which one begins with the other: names and
            directories never do. The default, `cq/`, is the space of a store that was opened without a prefix; other
            prefixes that overlap with it are refused.

    Raises:
        InvalidConfiguration: it cannot be a prefix.
    """

    def __init__(self, prefix: Any = ROOT) -> None:
        self.prefix = _prefix_bytes(prefix)

    def __repr__(self) -> str:
        return f"Space({self.prefix!r})"

    def key(self, key: bytes) -> bytes:
        """The key in the store of a key below `cq/`."""
        placed: bytes = Placement(self.prefix).placed(key)
        return placed

    def database(self, db: Any) -> Any:
        """A view of a database of either store; its transactions are views of this space."""
        while isinstance(db, SpaceDatabase):
            db = db.inner
        if self.prefix == ROOT:
            return db
        # Kept with the database: caches of configurations and clocks belong to one object for each space.
        views: dict[bytes, SpaceDatabase] = vars(db).setdefault("cq_spaces", {})
        return views.setdefault(self.prefix, SpaceDatabase(db, self.prefix))

    def transaction(self, tr: Any) -> Any:
        """A view of a transaction of either store, or of its `.snapshot`. Commit the transaction itself."""
        while isinstance(tr, SpaceReads):
            tr = tr.inner
        if self.prefix == ROOT:
            return tr
        view = SpaceTransaction if hasattr(tr, "snapshot") else SpaceReads
        return view(self.database(tr.db), tr)


def _prefix_bytes(prefix: Any) -> bytes:
    key = getattr(prefix, "key", None)  # of a subspace or a directory
    found = _parsed_name(prefix) if isinstance(prefix, str) else key() if callable(key) else prefix
    if not isinstance(found, bytes):
        raise InvalidConfiguration(
            f"expected a prefix to be bytes, a name, a subspace or a directory, got: {brief(prefix)}"
        )
    # A part of the default space, or a space with the default space as a part: workers, purges and deletions of one
    # would change the keys of the other.
    overlaps = found != ROOT and (found.startswith(ROOT) or ROOT.startswith(found))
    if overlaps or found.startswith(b"\xff") or len(found) > MAX_PREFIX_BYTES:
        raise InvalidConfiguration(
            f"the prefix {brief(found)} cannot be used: expected 1 to {MAX_PREFIX_BYTES} bytes that neither begin with "
            rf"{ROOT!r} nor are its beginning, and before the keys from b'\xff' on"
        )
    return found


def _parsed_name(name: str) -> bytes:
    if _HEX.fullmatch(name):
        return bytes.fromhex(name[2:])
    if not _NAME.fullmatch(name):
        raise InvalidConfiguration(
            f"expected the name of a prefix to have letters, digits, '_', '.' and '-', or '0x' and pairs of "
            f"hexadecimal digits, got: {brief(name)}"
        )
    return name.encode() + b"/"
