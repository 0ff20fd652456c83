"""`Space`: the prefix under which cq keeps its keys in a store, instead of the usual `cq/`.

A view of a database or a transaction has all its methods: it places the keys that they take, and passes the calls on.
Each placed key costs a comparison and a concatenation, and each row of a range a new row. A store that is opened
without a prefix has no view, and no such cost.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple, TypeVar
from weakref import ref

from cq.encoding.codec import brief
from cq.errors import InvalidConfiguration
from cq.keys import ROOT, prefix_end
from cq.store.reads import RefusedReads, WriteOnly
from cq.store.transact import transact

T = TypeVar("T")

_ROOT_END: Final = prefix_end(ROOT)
_OFFSET: Final = struct.Struct("<I")
_ATOMIC: Final = frozenset(
    f"{bit}{name}"
    for name in (
        *("add", "and", "or", "xor", "max", "min", "byte_min", "byte_max"),
        *("append_if_fits", "compare_and_clear", "set_versionstamped_value"),
    )
    for bit in ("", "bit_", "bit_bit_")
)
_OF_ONE_KEY: Final = _ATOMIC | {
    *("get", "set", "clear", "watch", "get_and_watch", "set_and_watch", "clear_and_watch"),
    *("add_read_conflict_key", "add_write_conflict_key"),
}
_OF_A_RANGE: Final = frozenset(("clear_range", "add_read_conflict_range", "add_write_conflict_range"))


class PlacedRow(NamedTuple):
    """A row of a range, with its key below `cq/`."""

    key: bytes
    value: bytes


class Placement:
    """Where the keys of a space are in the store.

    Args:
        prefix: the prefix of the space.
    """

    def __init__(self, prefix: bytes) -> None:
        self.prefix = prefix
        self._end = prefix_end(prefix)

    def placed(self, key: Any) -> Any:
        """The key in the store of a key that the view was given, or the selector of a selector."""
        if type(key) is not bytes:
            if hasattr(key, "as_foundationdb_key"):
                key = key.as_foundationdb_key()
            elif hasattr(key, "or_equal"):  # a key selector of either store
                return type(key)(self.placed(key.key), key.or_equal, key.offset)
        return self.prefix + key[len(ROOT) :] if key[: len(ROOT)] == ROOT else key

    def placed_stamped(self, key: Any) -> Any:
        """The same, for the key of `set_versionstamped_key`: the offset at its end moves, too."""
        key = _key_of(key)
        if key[: len(ROOT)] != ROOT:
            return key
        (offset,) = _OFFSET.unpack(key[-4:])
        return self.placed(key[:-4]) + _OFFSET.pack(offset + len(self.prefix) - len(ROOT))

    def placed_range(self, begin: Any, end: Any) -> tuple[Any, Any, bool]:
        """The bounds in the store, and whether the range is of this space: whether it begins below `cq/`.

        A range of this space ends with it. Any other range keeps its bounds, even if it includes the space.
        """
        first, last = _key_of(begin), _key_of(end)
        if not (isinstance(first, bytes) and first[: len(ROOT)] == ROOT):
            return begin, end, False
        if last is None or last >= _ROOT_END:
            return self.placed(begin), self._end, True
        if last[: len(ROOT)] != ROOT:  # an inverted range, which stays inverted
            return self.placed(begin), b"", True
        return self.placed(begin), self.placed(end), True

    def found(self, key: bytes) -> bytes:
        """The inverse of `placed`, for a key of this space."""
        return ROOT + key[len(self.prefix) :] if key.startswith(self.prefix) else key


class _PlacedReads:
    """The methods of a view that read, with their keys placed."""

    __slots__ = ()
    inner: Any
    placement: Placement

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        if name in _OF_ONE_KEY:
            return lambda key, *args, **named: found(self.placement.placed(key), *args, **named)
        if name in _OF_A_RANGE:
            return lambda begin, end: found(*self.placement.placed_range(begin, end)[:2])
        return found

    def get_key(self, key_selector: Any) -> Any:
        """The key that a selector resolves to."""
        key = self.inner.get_key(self.placement.placed(key_selector))
        return self.placement.found(key) if type(key) is bytes else _Converted(key, self.placement.found)

    def get_range(self, begin: Any, end: Any, *args: Any, **kwargs: Any) -> Any:
        """The rows of a range."""
        first, last, is_placed = self.placement.placed_range(begin, end)
        rows = self.inner.get_range(first, last, *args, **kwargs)
        if not is_placed:
            return rows
        placed = _PlacedRange(rows, self.placement.found)
        return list(placed) if isinstance(rows, list) else placed

    def get_range_startswith(self, prefix: Any, *args: Any, **kwargs: Any) -> Any:
        """The rows whose keys begin with `prefix`."""
        first = _key_of(prefix)
        return self.get_range(first, prefix_end(first), *args, **kwargs)

    def get_estimated_range_size_bytes(self, begin_key: Any, end_key: Any) -> Any:
        """The bytes of a range."""
        return self.inner.get_estimated_range_size_bytes(*self.placement.placed_range(begin_key, end_key)[:2])

    def get_range_split_points(self, begin_key: Any, end_key: Any, *args: Any, **kwargs: Any) -> Any:
        """Keys that cut a range into parts of about equal size."""
        first, last, is_placed = self.placement.placed_range(begin_key, end_key)
        points = self.inner.get_range_split_points(first, last, *args, **kwargs)
        if not is_placed:
            return points
        # Not `self`: a future holds no transaction.
        ends, found = {first: begin_key, last: end_key}, self.placement.found
        return _Converted(points, lambda keys: [ends.get(key) or found(key) for key in keys])

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            return self.get_range(key.start, key.stop, reverse=(key.step == -1))
        return self.inner.get(self.placement.placed(key))


class _PlacedWrites(_PlacedReads):
    """The methods of a view that write, with their keys placed."""

    __slots__ = ()

    def clear_range_startswith(self, prefix: Any) -> None:
        """Clear the keys that begin with `prefix`."""
        first = _key_of(prefix)
        del self[first : prefix_end(first)]

    def set_versionstamped_key(self, key: Any, param: Any) -> None:
        """Set a key that contains the versionstamp of the commit."""
        self.inner.set_versionstamped_key(self.placement.placed_stamped(key), param)

    bit_set_versionstamped_key = bit_bit_set_versionstamped_key = set_versionstamped_key

    def __setitem__(self, key: Any, value: Any) -> None:
        self.inner[self.placement.placed(key)] = value

    def __delitem__(self, key: Any) -> None:
        if isinstance(key, slice):
            self.inner.clear_range(*self.placement.placed_range(key.start, key.stop)[:2])
        else:
            self.inner.clear(self.placement.placed(key))


class SpaceDatabase(_PlacedWrites):
    """A view of a database."""

    def __init__(self, inner: Any, prefix: bytes) -> None:
        self.inner = inner
        self.placement = Placement(prefix)

    def create_transaction(self) -> Any:
        """A view of a new transaction."""
        return SpaceTransaction(self, self.inner.create_transaction())

    def transact(self, fn: Callable[[Any], T], *, write_only: bool = False) -> T:
        """Run `fn(tr)` in a transaction; see `cq.store.transact.transact`."""
        return transact(self, fn, write_only=write_only)


class SpaceReads(_PlacedReads):
    """A view of the reads of a transaction."""

    # With a dictionary, as a transaction: see `cq.store.embedded.reading`.
    __slots__ = ("__dict__", "__weakref__", "db", "inner", "placement")

    def __init__(self, db: SpaceDatabase, inner: Any) -> None:
        self.db = db
        self.inner = inner
        self.placement = db.placement

    def get(self, key: Any) -> Any:
        """The value of a key."""
        return self.inner.get(self.placement.placed(key))

    # The record of own writes is one for all views of a transaction: a view may end before its transaction does.

    @property
    def cq_noted(self) -> Any:
        """The record of `cq.store.own_writes`; its transaction is a view of this space."""
        noted = getattr(self.inner, "cq_noted", None)
        return None if noted is None else (lambda: self._view(noted[0]()), noted[1])

    @cq_noted.setter
    def cq_noted(self, noted: Any) -> None:
        writer = None if noted is None else noted[0]()
        self.inner.cq_noted = None if writer is None else (ref(writer.inner), noted[1])

    def _view(self, writer: Any) -> Any:
        return None if writer is None else SpaceTransaction(self.db, writer)


class SpaceTransaction(SpaceReads, _PlacedWrites):
    """A view of a transaction."""

    __slots__ = ("snapshot",)

    def __init__(self, db: SpaceDatabase, inner: Any) -> None:
        super().__init__(db, inner)
        self.snapshot = SpaceReads(db, inner.snapshot)

    # Defined, though `__getattr__` would do: passes call these for each key.

    def set(self, key: Any, value: Any) -> None:
        """Set a key."""
        self.inner.set(self.placement.placed(key), value)

    def clear(self, key: Any) -> None:
        """Clear a key."""
        self.inner.clear(self.placement.placed(key))


class _PlacedRange:
    """The rows of a range read, with their keys below `cq/`."""

    def __init__(self, rows: Any, found: Callable[[bytes], bytes]) -> None:
        self._rows, self._found = rows, found

    def __iter__(self) -> Iterator[PlacedRow]:
        return (PlacedRow(self._found(row.key), row.value) for row in self._rows)

    def to_list(self) -> list[PlacedRow]:
        """All rows."""
        return [PlacedRow(self._found(row.key), row.value) for row in self._rows.to_list()]


class _Converted:
    """A future whose result is converted. A key can be used like its bytes, as with the futures of both stores."""

    def __init__(self, future: Any, convert: Callable[[Any], Any]) -> None:
        self._future, self._convert = future, convert

    def __getattr__(self, name: str) -> Any:
        return getattr(self.wait() if hasattr(bytes, name) else self._future, name)

    def wait(self) -> Any:
        """The converted result."""
        return self._convert(self._future.wait())

    value = property(wait)
    as_foundationdb_key = as_foundationdb_value = wait

    def on_ready(self, callback: Callable[[Any], None]) -> None:
        """Call `callback(future)` once it is ready."""
        self._future.on_ready(lambda _: callback(self))


def _on_result(name: str) -> Callable[..., Any]:
    """A method that applies one of bytes to the result, and to those of other futures."""
    return lambda self, *others: getattr(self.wait(), name)(*map(_result_of, others))


def _result_of(other: Any) -> Any:
    return other.wait() if isinstance(other, _Converted) else other


for _name in ("eq", "lt", "le", "gt", "ge", "hash", "bytes", "len", "getitem", "add", "str", "repr"):
    setattr(_Converted, f"__{_name}__", _on_result(f"__{_name}__"))


def _key_of(key: Any) -> Any:
    """The bytes of a key argument; the key of a selector; None for None."""
    if hasattr(key, "as_foundationdb_key"):
        return key.as_foundationdb_key()
    return key.key if hasattr(key, "or_equal") else key


MAX_PREFIX_BYTES: Final = 100
"""Limit of a prefix. The longest keys of cq leave room for it in the 10,000 bytes of a key."""

_NAME: Final = re.compile(r"(?!0x)[A-Za-z0-9][A-Za-z0-9_.-]{0,98}")
_HEX: Final = re.compile(r"0x([0-9A-Fa-f]{2})+")


class Space:
    """A part of a store with cq's queues, feeds, cells and workers, all below one prefix.

    Spaces in one store do not see each other. FoundationDB layers share a cluster in this way. A view of a database or
    a transaction moves the keys below `cq/` to the prefix, and passes all other keys on as they are, so that an
    application can use it for its own keys, too.

        space = Space(fdb.directory.create_or_open(db, ("shop", "counts")))
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
        if isinstance(tr, (WriteOnly, RefusedReads)):
            return type(tr)(self.transaction(tr.inner))
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


def url_prefix(prefix: bytes) -> str:
    """The text that stands for a prefix in a URL: a name, or hexadecimal digits after `0x`."""
    name = prefix[:-1].decode("ascii", "replace")
    return name if prefix.endswith(b"/") and _NAME.fullmatch(name) else f"0x{prefix.hex()}"


def _parsed_name(name: str) -> bytes:
    if _HEX.fullmatch(name):
        return bytes.fromhex(name[2:])
    if not _NAME.fullmatch(name):
        raise InvalidConfiguration(
            f"expected the name of a prefix to have letters, digits, '_', '.' and '-', or '0x' and pairs of "
            f"hexadecimal digits, got: {brief(name)}"
        )
    return name.encode() + b"/"
