"""A multiversion store in memory that knows a dozen keys, to check every read and every verdict of the real one.

It shares nothing with it: a transaction is its snapshot and the list of its writes, a read replays that list, and
what was read is a set of keys.
"""

from __future__ import annotations

from dataclasses import dataclass, field

KEYS = [b"a", b"a\x00", b"ab", b"b", b"b\xff", b"c", b"ca", b"d", b"e", b"f", b"f\x00\x00", b"g"]

Write = tuple[str, bytes, bytes]
State = dict[bytes, bytes]


def number(value: bytes | None) -> int:
    return int.from_bytes(value or b"", "little")


def within(begin: bytes, end: bytes) -> list[bytes]:
    """The keys of a range, and a point for each gap between them: ranges also meet where there is no key."""
    return [point for point in sorted({*KEYS, *(key + b"\x00" for key in KEYS)}) if begin <= point < end]


@dataclass
class ModelTransaction:
    store: Model
    snapshot: State | None = None
    read_commit: int = 0
    writes: list[Write] = field(default_factory=list)
    read: set[bytes] = field(default_factory=set)

    def see(self) -> State:
        """What it sees: its snapshot and its own writes."""
        state = dict(self._base())
        for kind, first, second in self.writes:
            apply(state, kind, first, second)
        return state

    def get(self, key: bytes, snapshot: bool) -> bytes | None:
        self._note([key], snapshot)
        return self.see().get(key)

    def get_range(
        self, begin: bytes, end: bytes, limit: int, reverse: bool, snapshot: bool
    ) -> list[tuple[bytes, bytes]]:
        rows = sorted((k, v) for k, v in self.see().items() if begin <= k < end)
        rows = rows[::-1] if reverse else rows
        if limit and len(rows) >= limit:
            rows = rows[:limit]
            begin, end = (rows[-1][0], end) if reverse else (begin, rows[-1][0] + b"\x00")
        self._note(within(begin, end), snapshot)
        return rows

    def _base(self) -> State:
        if self.snapshot is None:
            self.snapshot, self.read_commit = dict(self.store.state), len(self.store.commits)
        return self.snapshot

    def _note(self, keys: list[bytes], snapshot: bool) -> None:
        """Only what shows through its own writes has been read."""
        if not snapshot:
            self._base()
            self.read.update(key for key in keys if not self._knows(key))

    def _knows(self, key: bytes) -> bool:
        for kind, first, second in self.writes:
            if (kind == "clear_range" and first <= key < second) or (
                kind in ("set", "clear") and first == key
            ):
                return True
        return False

    def commit(self) -> bool:
        """Whether it commits."""
        conflicting: set[bytes] = set().union(*self.store.commits[self.read_commit :])
        if self.writes and self.snapshot is not None and self.read & conflicting:
            return False
        written: set[bytes] = set()
        for kind, first, second in self.writes:
            apply(self.store.state, kind, first, second)
            written.update(within(first, second) if kind == "clear_range" else [first])
        if self.writes:
            self.store.commits.append(written)
        return True


@dataclass
class Model:
    state: State = field(default_factory=dict)
    commits: list[set[bytes]] = field(default_factory=list)

    def begin(self) -> ModelTransaction:
        return ModelTransaction(self)


def apply(state: State, kind: str, first: bytes, second: bytes) -> None:
    if kind == "set":
        state[first] = second
    elif kind == "clear":
        state.pop(first, None)
    elif kind == "clear_range":
        for key in within(first, second):
            state.pop(key, None)
    elif kind == "add":
        total = number(state.get(first, b"")[: len(second)]) + number(second)
        state[first] = (total % 256 ** len(second)).to_bytes(len(second), "little")
    elif kind == "byte_max":
        state[first] = max(state.get(first, second), second)
    elif kind == "append_if_fits":
        state[first] = state.get(first, b"") + second
    elif kind == "compare_and_clear" and state.get(first) == second:
        del state[first]
