r"""The keys of cells and of their directory, below `cq/c/`.

Each row has a key, its value, its writers, and its store. `user` is a user's id in CBOR. No such id begins with another
one, so the keys of two users never mix. `entry` is the name of an index, "/" and a text.

    "cq/c/n" name            a cell: URL, weight, limit, state ...    add_cell, drain_cell ...   directory
    "cq/c/l" name            the number of its users                  place, moves (atomic)      directory
    "cq/c/s"                 which cell new users fill                fill                       directory
    "cq/c/u" user            the user's cell, epoch and current move  place, moves, deletions    directory
    "cq/c/w" name "/" user   ""                                       place, moves               directory
    "cq/c/a" name            the user of a second name                names                      directory
    "cq/c/b" user name       ""                                       names                      directory
    "cq/c/m" user            "", while the user is moving             moves                      directory
    "cq/c/g" old             user and number of a former id           map_old_ids                directory
    "cq/c/i"                 names of the cell and of its directory   add_cell                   cell
    "cq/c/f" user            the user's fence: state, epoch, copy     transactions, moves        cell
    "cq/c/x" user            which names stay, during a deletion      deletions                  cell
    "cq/c/d" user "d" ...    the application's data of the user       the application            cell
    "cq/c/d" user "n"        the user's latest id                     next_id                    cell
    "cq/c/d" user "o" old    the new id of a former id                map_id                     cell
    "cq/c/d" user "x" entry  value of an entry of the user            put_entry                  cell
    "cq/c/e" entry 0x00 user ""                                       put_entry, moves           cell
"""

from __future__ import annotations

from struct import Struct
from typing import Any, Final

from cq.encoding import codec
from cq.errors import CorruptData, InvalidData, TooLarge
from cq.keys.queue import ROOT, Prefix, check_name, prefix_end

CELLS: Final = ROOT + b"c/"
MAX_USER_BYTES: Final = 200
"""Limit of a user's id in CBOR. It leaves most of the 10,000 bytes of a key to the application."""

cells: Final = Prefix(CELLS + b"n")
"""The prefix of all cells' entries."""
_COUNTS: Final = CELLS + b"l"
FILL: Final = CELLS + b"s"
_USERS: Final = CELLS + b"u"
_WITHIN: Final = CELLS + b"w"
_MOVES: Final = CELLS + b"m"
_NAME_ENTRIES: Final = CELLS + b"a"
_NAMES_OF: Final = CELLS + b"b"
MAX_NAME_BYTES: Final = 200
_GLOBAL_IDS: Final = CELLS + b"g"
IDENTITY: Final = CELLS + b"i"
_FENCES: Final = CELLS + b"f"
_DELETIONS: Final = CELLS + b"x"
_DATA: Final = CELLS + b"d"
_ENTRIES: Final = CELLS + b"e"
MAX_ENTRY_BYTES: Final = 1_000
"""Limit of the text of an entry."""
_COUNT: Final = Struct("<q")  # little-endian, because atomic additions are


def encoded_user(user: Any) -> bytes:
    """A user's id in CBOR; raises `InvalidData` or `TooLarge` if it is not valid.

    >>> encoded_user("ada")
    b'cada'
    """
    if type(user) not in (str, int, bytes) or user in ("", b""):
        raise InvalidData(
            f"expected a user's id to be str, int or bytes, not empty, got: {codec.brief(user)}"
        )
    data = codec.encode(user)
    if len(data) > MAX_USER_BYTES:
        raise TooLarge(f"a user's id of {len(data):,} bytes exceeds the limit of {MAX_USER_BYTES:,}")
    return data


# In the directory


def cell(name: str) -> bytes:
    """The key of a cell's entry; for what is no text, a key that no entry has."""
    return cells + _utf8(name)


def cell_of(key: bytes) -> str:
    """The inverse of `cell`."""
    return cells.rest(key).decode()


def count(name: str) -> bytes:
    """The key of the number of users of a cell."""
    return _COUNTS + name.encode()


def packed_count(number: int) -> bytes:
    """A number of users as the argument of an atomic addition; negative numbers subtract."""
    return _COUNT.pack(number)


def count_of(value: bytes | None) -> int:
    """The inverse of `packed_count`; 0 for None. Raises `CorruptData`."""
    if value is None:
        return 0
    if len(value) != _COUNT.size:
        raise CorruptData(f"the number of users of a cell is not one that cq wrote: {value[:40]!r}")
    return int(_COUNT.unpack(value)[0])


def record(user: bytes) -> bytes:
    """The key of a user's record."""
    return _USERS + user


def within(name: str, user: bytes = b"") -> bytes:
    """The key that exists while a user is in a cell; without a user, the prefix of these keys of the cell."""
    return _WITHIN + name.encode() + b"/" + user


def name_entry(name: str) -> bytes:
    """The key of a second name of a user; raises `InvalidData` or `TooLarge` if it is not valid."""
    return _NAME_ENTRIES + _encoded_name(name)


def name_of(user: bytes, name: str | None = None) -> bytes:
    """The key of a second name among those of the user; without a name, the prefix of these keys."""
    return _NAMES_OF + user + (b"" if name is None else _encoded_name(name))


def _encoded_name(name: str) -> bytes:
    data = _utf8(name)
    if not data:
        raise InvalidData(f"expected a second name of a user to be text, not empty, got: {codec.brief(name)}")
    if len(data) > MAX_NAME_BYTES:
        raise TooLarge(f"a second name of {len(data):,} bytes exceeds the limit of {MAX_NAME_BYTES:,}")
    return data


def _utf8(text: str) -> bytes:
    """The text in UTF-8; empty for what is no text, and for surrogates."""
    try:
        return text.encode() if type(text) is str else b""
    except UnicodeEncodeError:
        return b""


def moving(user: bytes = b"") -> bytes:
    """The key that exists while a user is moving; without a user, the prefix of these keys."""
    return _MOVES + user


def user_in(prefix: bytes, key: bytes) -> Any:
    """The user's id in a key, after this prefix."""
    return codec.decode(key[len(prefix) :])


def global_id(old: Any) -> bytes:
    """The key of the user and number of a former id of the whole site; raises as `old_id`."""
    return _GLOBAL_IDS + _encoded_id(old)


# In a cell


def fence(user: bytes) -> bytes:
    """The key of a user's fence."""
    return _FENCES + user


def deleting(user: bytes = b"") -> bytes:
    """The key that exists while a user is being deleted; without a user, the prefix of these keys."""
    return _DELETIONS + user


def all_of(user: bytes) -> tuple[bytes, bytes]:
    """The range of all data that move with a user."""
    return _DATA + user, prefix_end(_DATA + user)


def data(user: bytes) -> bytes:
    """The prefix of the application's data of a user."""
    return _DATA + user + b"d"


def latest_id(user: bytes) -> bytes:
    """The key of a user's latest id."""
    return _DATA + user + b"n"


def old_id(user: bytes, old: Any) -> bytes:
    """The key of the new id of a former id; raises `InvalidData` or `TooLarge` if it is not valid."""
    return _DATA + user + b"o" + _encoded_id(old)


def _encoded_id(old: Any) -> bytes:
    if not isinstance(old, (str, int, bytes, tuple)) or isinstance(old, bool):
        raise InvalidData(f"expected an old id to be str, int, bytes or a tuple, got: {codec.brief(old)}")
    data = codec.encode(old)
    if len(data) > codec.MAX_KEY_BYTES:
        raise TooLarge(f"an old id of {len(data):,} bytes exceeds the limit of {codec.MAX_KEY_BYTES:,}")
    return data


def entry_name(index: str, text: str) -> bytes:
    """The name of an entry, of an index and a text; raises `InvalidData` or `TooLarge` if it is not valid."""
    encoded = _utf8(text)
    if not encoded or b"\x00" in encoded:
        raise InvalidData(f"expected an entry of an index to be a text without NUL, got: {codec.brief(text)}")
    name = _in_index(index) + encoded
    if len(name) > MAX_ENTRY_BYTES:
        raise TooLarge(f"an entry of {len(name):,} bytes exceeds the limit of {MAX_ENTRY_BYTES:,}")
    return name


def own_entry(user: bytes, name: bytes) -> bytes:
    """The key of a user's entry, which moves with the user."""
    return _DATA + user + b"x" + name


def entry_in(user: bytes, key: bytes) -> bytes | None:
    """The inverse of `own_entry`; None for other data of the user."""
    prefix = own_entry(user, b"")
    return key[len(prefix) :] if key.startswith(prefix) else None


def listed_entry(name: bytes, user: bytes) -> bytes:
    """The key of a user's entry in the index of the cell."""
    return _ENTRIES + name + b"\x00" + user


def listed_entries(index: str, prefix: str = "") -> tuple[bytes, bytes]:
    """The range of the entries of an index that begin with a text; raises as `entry_name` if it is not valid."""
    begin = _ENTRIES + (_in_index(index) if prefix == "" else entry_name(index, prefix))
    return begin, prefix_end(begin)


def _in_index(index: str) -> bytes:
    return check_name(index, "search index").encode() + b"/"


def parts_of_entry(key: bytes) -> tuple[bytes, bytes]:
    """The inverse of `listed_entry`."""
    name, _, user = key[len(_ENTRIES) :].partition(b"\x00")
    return name, user
