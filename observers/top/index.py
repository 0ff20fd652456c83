"""The top of a queue: an index of its keys by score, kept exact by the passes that change values.

The index is written from the old and the new value of each change, without reads, so passes over different buckets
never conflict over it. The order is by score, the highest first, as numbers (see `cq.observers.top.scores`), and among
equal scores by key, ascending (see `cq.observers.top.sort_keys`). `Ranking` reads the index, and `Publisher` publishes
its first entries as the cloud.

Counts are changed by atomic adds, which never conflict either. With `ranks` there is a count for every prefix of a
score's bytes, a trie: the keys with a higher score than a given key are those below the left-hand siblings of its path.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from cq.config.queue import QueueConfig
from cq.durations import Span, span_of
from cq.encoding import codec
from cq.encoding.sketches import KINDS, Sketch
from cq.errors import CodeMismatch, InvalidConfiguration, InvalidData, TooLarge
from cq.keys import INCOMPLETE_VERSIONSTAMP, QueueKeys
from cq.keys.top import TopKeys, checked_group
from cq.observer import Change, ObserverFunction, ObserverSpec
from cq.observers.top.kept import KeptClouds
from cq.observers.top.scores import descending
from cq.observers.top.sort_keys import to_sort_key
from cq.store.api import Transaction

ScoreFunction = Callable[[Any, Any], Any]
"""`score(key, value)`: an int, Decimal or float, or None to keep the key out."""
GroupFunction = Callable[[Any, Any], str | None]
"""`group(key, value)`: the group that the key belongs to, or None to keep the key out."""

NAME: Final = "top"
MAX_N: Final = 10_000
DEFAULT_N: Final = 100
MAX_ENTRY_BYTES: Final = 10_000
"""The longest key of an entry: FoundationDB's limit."""
LAST_PART: Final = "last part"
"""The group of a key is the last part of the key, such as the start of a period of a roll-up."""
_MAX_EVERY: Final = 86_400
NUMBERS: Final = ("int", "float", "decimal", "any", *KINDS)
"""The types of values that have scores without a score function of an application."""
COUNT_BYTES: Final = 8
_NO_ENTRIES: Final = bytes(COUNT_BYTES)


def top(
    n: int = DEFAULT_N,
    *,
    every: Span = 1,
    keep: Span | None = None,
    ranks: bool = False,
    score: ScoreFunction | None = None,
    group: GroupFunction | str | None = None,
    version: int = 1,
) -> ObserverSpec:
    """The observer to configure a queue with, for `cq.configure` or `cq.App.queue`.

    Args:
        n: how many keys the published cloud has; 1 to 10,000. The index has all keys.
        every: least time between two publications of a cloud, in whole milliseconds; 0 to a day.
        keep: how long each version of the cloud is kept after its replacement, such as `"1h"`; `"30d/1h"` keeps only
            the last version of each hour. None: not at all. The totals of a window keep the versions of one width.
        ranks: keep the counts that ranks need: a few atomic adds for each change of a score.
        score: function of the score to order by; None for the value itself, or of a sketch its estimate or count. An
            error that it raises sets the key aside.
        group: function of a key's group, a str of 1 to 500 bytes: keeps a top and a cloud for each; None for one top
            of the whole queue. `"last part"` needs no code of the application: the group is the last part of a key, and
            there are no clouds.
        version: of `score` and `group`; increase it whenever their results change.

    Raises:
        InvalidConfiguration: a setting is outside of its range, or of another type.
    """
    if type(n) is not int or not 1 <= n <= MAX_N:
        raise InvalidConfiguration(f"expected n of a top to be 1 to {MAX_N:,}, got: {codec.brief(n)}")
    seconds = span_of(every)
    if not 0 <= seconds <= _MAX_EVERY:
        raise InvalidConfiguration(f"expected every of a top to be 0 to a day, got: {codec.brief(every)}")
    if type(ranks) is not bool:
        raise InvalidConfiguration(f"expected ranks of a top to be True or False, got: {codec.brief(ranks)}")
    if not (score is None or callable(score)):
        raise InvalidConfiguration(f"expected score of a top to be a function, got: {codec.brief(score)}")
    if not (group is None or group == LAST_PART or callable(group)):
        raise InvalidConfiguration(
            f"expected group of a top to be a function, or {LAST_PART!r}, got: {codec.brief(group)}"
        )
    function = None if isinstance(group, str) else group
    by = group if isinstance(group, str) else group is not None
    settings: dict[str, Any] = {
        "n": n,
        "every": round(1000 * seconds),
        "ranks": ranks,
        "score": score is not None,
        "group": by,
    }
    if keep is not None:
        if by == LAST_PART:
            raise InvalidConfiguration(
                f"expected no keep of a top in groups by {LAST_PART!r}, which has no clouds"
            )
        settings["keep"] = str(KeptClouds.parse(keep))
    make = partial(observer, score=score, group=function)
    factory = make if score is not None or function is not None else None
    return ObserverSpec(NAME, version, settings, factory, check=lambda tr, config: make(config, settings, 0))


def observer(
    config: QueueConfig,
    settings: Mapping[str, Any],
    generation: int,
    *,
    score: ScoreFunction | None = None,
    group: GroupFunction | None = None,
) -> ObserverFunction:
    """The function that keeps one generation of a queue's top.

    Raises:
        CodeMismatch: the settings require a score or group function that is not given, or the other way round.
        InvalidConfiguration: the queue's values are not numbers, and there is no score function.
    """
    group = group_function(config, settings, group)
    for what, function in (("score", score), ("group", group)):
        if bool(settings.get(what)) != (function is not None):
            raise CodeMismatch(
                f"the top of queue {config.name!r} is configured with a {what} function of the application's: "
                "start this process with --app and the application that declares it"
                if settings.get(what)
                else f"the top of queue {config.name!r} is configured without the {what} function of this process"
            )
    if score is None and config.value.name not in NUMBERS:
        raise InvalidConfiguration(
            f"the values of queue {config.name!r} are of type {config.value}, which has no scores: "
            "declare a top with a score function in an application"
        )
    return Index(config, TopKeys(QueueKeys(config.name), generation), settings, score, group)


def group_function(
    config: QueueConfig, settings: Mapping[str, Any], own: GroupFunction | None
) -> GroupFunction | None:
    """The function of a key's group: that of the settings, or the application's; None without groups.

    Raises `InvalidConfiguration` if keys have one part, and groups are their last part.
    """
    if settings.get("group") != LAST_PART:
        return own
    if len(config.key.parts) < 2:
        raise InvalidConfiguration(
            f"expected keys of several parts for a top by their last part, queue {config.name!r} has keys of "
            f"{config.key}"
        )
    return lambda key, value: str(key[-1])


class IndexPlace(NamedTuple):
    """The place of an entry in the index: its group, its score's bytes, and the score."""

    group: str | None
    place: bytes
    score: Any


def place_of(
    key: Any, value: Any, score: ScoreFunction | None, group: GroupFunction | None
) -> IndexPlace | None:
    """The place of a key with this value, None if it is kept out; raises `InvalidData`, and errors of the functions."""
    if value is None:
        return None
    number = _score_of(value) if score is None else score(key, value)
    if number is None:
        return None
    name = None if group is None else group(key, value)
    if group is not None and name is None:
        return None
    try:
        return IndexPlace(None if group is None else checked_group(name), descending(number), number)
    except InvalidData as error:
        raise type(error)(f"key {codec.brief(key)}: {error}") from None


def _score_of(value: Any) -> Any:
    return value.score if isinstance(value, Sketch) else value


class Index:
    """The observer's function, which writes the index of one generation.

    Attributes:
        keys: of the generation.
        ranks: whether it keeps counts for ranks.
        publishes: whether workers publish clouds of it.
    """

    def __init__(
        self,
        config: QueueConfig,
        keys: TopKeys,
        settings: Mapping[str, Any],
        score: ScoreFunction | None,
        group: GroupFunction | None,
    ) -> None:
        self._key_type = config.key
        self.keys = keys
        self.ranks = bool(settings["ranks"])
        self.publishes = settings["group"] != LAST_PART
        self._score = score
        self._group = group

    def place(self, key: Any, value: Any) -> IndexPlace | None:
        """The place of a key with this value, as `place_of`."""
        return place_of(key, value, self._score, self._group)

    def entry(self, place: IndexPlace, sort_key: bytes) -> bytes:
        """The key of an entry of the index."""
        return self.keys.entries(place.group) + place.place + sort_key

    def __call__(self, tr: Transaction, changes: Sequence[Change]) -> None:
        """Apply the changes to the index, without reads; all changes are validated before the first write."""
        moves = [move for change in changes if (move := self._move(change))]
        counts: Counter[bytes] = Counter()
        groups: dict[str | None, None] = {}
        for sort_key, old, new, entry in moves:
            if old is not None:
                tr.clear(self.entry(old, sort_key))
                groups[old.group] = None
            if new is not None:
                tr.set(entry, codec.encode(new.score))
                groups[new.group] = None
            self._count(counts, old, new)
        for key, difference in counts.items():
            if difference:
                tr.add(key, difference.to_bytes(COUNT_BYTES, "little", signed=True))
            if difference < 0:
                tr.compare_and_clear(key, _NO_ENTRIES)  # applied at commit, so no concurrent add is lost
        if not self.publishes:
            return
        for group in groups:
            tr.set_versionstamped_value(self.keys.mark(group), INCOMPLETE_VERSIONSTAMP)
        if groups:
            tr.set_versionstamped_value(self.keys.notification, INCOMPLETE_VERSIONSTAMP)

    def _move(self, change: Change) -> tuple[bytes, IndexPlace | None, IndexPlace | None, bytes] | None:
        """Sort key, old and new place of the entry, and its new key; None if the place does not change."""
        old = self.place(change.key, change.old)
        new = self.place(change.key, change.new)
        if old is None or new is None:
            if old is new:
                return None
        elif old.place == new.place and old.group == new.group:
            return None
        sort_key = to_sort_key(self._key_type, change.key)
        entry = b"" if new is None else self.entry(new, sort_key)
        if len(entry) > MAX_ENTRY_BYTES:
            raise TooLarge(
                f"key {codec.brief(change.key)}: with group and score an entry of {len(entry):,} bytes exceeds the "
                f"limit of {MAX_ENTRY_BYTES:,}"
            )
        return sort_key, old, new, entry

    def _count(self, counts: Counter[bytes], old: IndexPlace | None, new: IndexPlace | None) -> None:
        """Add the differences of counts for a change; counts of prefixes common to old and new place stay the same."""
        shared = 0
        if old is not None and new is not None and old.group == new.group:
            if not self.ranks:
                return
            pairs = enumerate(zip(old.place, new.place, strict=False))  # neither begins with the other
            shared = 1 + next(position for position, (one, other) in pairs if one != other)
        for place, difference in ((old, -1), (new, 1)):
            if place is None:
                continue
            if not shared:
                counts[self.keys.count(place.group)] += difference
            if self.ranks:
                for length in range(shared, len(place.place) + 1):
                    counts[self.keys.node(place.group, place.place[:length])] += difference
