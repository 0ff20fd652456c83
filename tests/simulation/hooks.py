"""The receivers of a simulated webhook: they store positions and rows in one step, fail, are late, and are set back."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from cq.keys.link import LinkKeys
from cq.observers.links.target import LinkFailed, OutdatedBatch, Source, refuse_late_sweep
from cq.observers.links.targets.receiver import Answer
from cq.observers.links.targets.webhook import SWEEP, WebhookTarget
from tests.simulation.application import SUMS
from tests.simulation.model import Table, Violation
from tests.simulation.sql import LATE_SECONDS

if TYPE_CHECKING:
    from tests.simulation.links import Links

HOOK: Final = LinkKeys(SUMS, "hook")
"""The link of the sums to a receiver."""
_CONFLICT: Final = 409


@dataclass
class Kept:
    """What a receiver stores, and what it has received.

    Attributes:
        positions: {bucket: position}.
        rows: {key: (sequence, value)}.
        latest: {bucket: sequence of the latest entry}; without those of before the store was set back.
        values: {key: all values received}.
    """

    positions: dict[int, str] = field(default_factory=dict)
    rows: dict[str, tuple[str, Any]] = field(default_factory=dict)
    latest: dict[int, str] = field(default_factory=dict)
    values: dict[str, list[Any]] = field(default_factory=dict)


class Hook:
    """A receiver in a process of its own, which applies changes as the documentation of webhooks says.

    Args:
        look: called with the rows after each request.

    Attributes:
        sweeps: the requests to sweep since the latest backup.
    """

    def __init__(self, look: Callable[[Mapping[str, Any]], object]) -> None:
        self.kept = Kept()
        self.sweeps: list[bytes] = []
        self._saved: Kept | None = None
        self._look = look

    def take(self, body: bytes) -> Answer:
        """Answer a request, which is applied as a whole or not at all."""
        message = json.loads(body)
        data = message["data"]
        if message["type"] == SWEEP:
            self.sweeps.append(body)
            late = [each for each in self.kept.positions.values() if self._is_late(each, data)]
            if late:
                return Answer(_CONFLICT, json.dumps({"position": late[0]}))
            self.kept.rows = {key: row for key, row in self.kept.rows.items() if row[0] >= data["below"]}
        else:
            stored = self.kept.positions.get(data["bucket"], "")
            if self._refuses(stored, data):
                return Answer(_CONFLICT, json.dumps({"position": stored}))
            self._apply(data)
            self.kept.positions[data["bucket"]] = data["position"]
        self._look(self.rows())
        return Answer(200, "")

    def _refuses(self, stored: str, data: Mapping[str, Any]) -> bool:
        return bool(stored != data["previous"])

    def _is_late(self, position: str, data: Mapping[str, Any]) -> bool:
        try:
            refuse_late_sweep([position], data["epoch"], bytes.fromhex(data["below"]))
        except OutdatedBatch:
            return True
        return False

    def _apply(self, data: Mapping[str, Any]) -> None:
        kept, bucket = self.kept, data["bucket"]
        for entry in data["entries"]:
            key, sequence = entry["key"], entry["sequence"]
            if sequence <= kept.latest.get(bucket, ""):
                raise Violation(f"bucket {bucket}: {entry} is applied after {kept.latest[bucket]}")
            kept.latest[bucket] = sequence
            kept.values.setdefault(key, []).append(entry["value"])
            kept.rows.pop(key, None)
            if entry["value"] is not None:
                kept.rows[key] = sequence, entry["value"]

    def rows(self) -> dict[str, Any]:
        """{key: value}."""
        return {key: value for key, (_, value) in self.kept.rows.items()}

    def save_or_restore(self, *, restore: bool) -> bool:
        """Make a backup, or restore it, if there is one; returns whether it is restored."""
        if restore and self._saved is not None:
            self.kept = copy.deepcopy(self._saved)
            return True
        self._saved = copy.deepcopy(self.kept)
        self.sweeps.clear()
        return False

    def forget_sequences(self) -> None:
        """The store was set back: it gives sequences again."""
        for kept in (self.kept, self._saved):
            if kept is not None:
                kept.latest.clear()


class Hooks:
    """The receivers of one run; the link goes to one of them at a time.

    Attributes:
        by_name: {name: receiver}.
        models: {name: what its rows may be}.
    """

    def __init__(self, world: Links) -> None:
        self.world = world
        self.models = {name: Table() for name in ("east", "west")}
        self.by_name = {name: Hook(partial(self._look, name)) for name in self.models}

    def make_target(self, name: str, source: Source) -> WebhookTarget:
        """The target of a link to this receiver, in the process that has its turn."""
        receiver: Any = SimReceiver(self.world, self.by_name[name])
        return WebhookTarget(source, receiver)

    def report(self, key: str, value: int | None) -> None:
        """A pass has reported a value."""
        for model in self.models.values():
            model.reported[key].append(value)

    def set_back(self, name: str) -> bool:
        """Make a backup of a receiver, or restore it; returns whether it is restored."""
        return self.copy(name, restore=self.world.hub.rng.random() < 0.5)

    def copy(self, name: str, *, restore: bool) -> bool:
        """Make a backup of a receiver, or restore it, if there is one; returns whether it is restored."""
        hook = self.by_name[name]
        is_restored = hook.save_or_restore(restore=restore)
        self.world.trace("receiver", name, "is restored" if is_restored else "is saved")
        if is_restored:
            self.models[name].set_back(hook.rows())
        return is_restored

    def sweep_late(self, name: str) -> None:
        """Requests to sweep of after the backup come again, unless the link has another generation by then.

        While a receiver gets all values again, it may lack those that it has not got yet.
        """
        generation = self.world.hook_generation()

        def deliver(body: bytes) -> None:
            if self.world.hook_generation() == generation:
                self.world.trace("a sweep is late")
                SimReceiver(self.world, self.by_name[name]).deliver(body)

        for body in list(self.by_name[name].sweeps):
            delay = self.world.hub.rng.uniform(0, LATE_SECONDS)
            self.world.hub.start(self.world.sky, "deliver", partial(deliver, body), delay)

    def _look(self, name: str, rows: dict[str, Any]) -> None:
        self.models[name].look(rows, set())

    def check_exactly_once(self, name: str) -> None:
        """Raises `Violation` unless the receiver has received each reported value once, in order."""
        found = self.by_name[name].kept.values
        expected = {key: values[1:] for key, values in self.models[name].reported.items() if values[1:]}
        if found != expected:
            raise Violation(f"the receiver {name} has received {found}, expected {expected}")


class SimReceiver:
    """A receiver as a process sees it: requests take time, fail, and arrive late or twice."""

    def __init__(self, world: Links, hook: Hook) -> None:
        self._world, self._hook = world, hook

    def check(self) -> str:
        return "a simulated receiver"

    def close(self) -> None:
        pass

    def post(self, message: str, body: bytes) -> Answer:
        world = self._world
        if world.hub.current is None or world.hub.is_over:
            return self.deliver(body)
        rng = world.hub.rng
        self._pass_time(rng.choice((0.002, 0.002, 0.05)))
        if world.happens("the receiver fails", 0.2):
            return self._fail(body, rng.choice(("down", "busy", "late", "twice", "silent")))
        answer = self.deliver(body)
        self._pass_time(LATE_SECONDS if world.happens("targets are slow", 0.2) else 0.002)
        return answer

    def _pass_time(self, seconds: float) -> None:
        world = self._world
        task = world.hub.current
        assert task is not None
        if world.happens("freezes", 0.05):
            world.freeze(task.process)
        world.hub.wait(world.hub.rng.expovariate(1 / seconds))

    def _fail(self, body: bytes, how: str) -> Answer:
        """Do not answer, or refuse for now; the request may be applied, now or later, or both."""
        world, rng = self._world, self._world.hub.rng
        world.trace("the receiver fails:", how)
        if how == "busy":
            return Answer(503, "busy", rng.choice((0.0, 2.0)))
        if how in ("late", "twice"):
            world.hub.start(world.sky, "deliver", lambda: self.deliver(body), rng.uniform(0, LATE_SECONDS))
        if how in ("twice", "silent"):
            self.deliver(body)
        raise LinkFailed(f"the receiver does not answer: {how}")

    def deliver(self, body: bytes) -> Answer:
        """A request arrives."""
        try:
            return self._hook.take(body)
        except Violation as violation:
            self._world.violations.append(str(violation))
            return Answer(200, "")
