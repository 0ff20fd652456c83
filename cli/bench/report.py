"""The report of a benchmark, as JSON and as tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from cq.cli.bench.measures.figures import Figure
from cq.cli.bench.measures.growth import COMPARED, GrowthResult
from cq.cli.bench.measures.live import LiveResult
from cq.cli.bench.measures.phases import PhaseResult

OWN: Final = "cq"


@dataclass
class BenchReport:
    """All results of a run.

    Attributes:
        machine: see `machine_facts`.
        settings: the settings of the run.
        rows: results of adding and draining in turn.
        live: results of adding and combining at the same time.
        growth: cost of an update as a queue grows.
        emitters: results of single increments; the first one is for single adds.
        left_out: {name of a system without a measurement: reason}.
    """

    machine: dict[str, Any]
    settings: dict[str, Any]
    rows: list[PhaseResult] = field(default_factory=list)
    live: list[LiveResult] = field(default_factory=list)
    growth: list[GrowthResult] = field(default_factory=list)
    emitters: list[PhaseResult] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """The report for JSON: rates in updates per second, latencies in ms, costs in µs; all are medians."""
        return {
            "machine": self.machine,
            "settings": self.settings,
            "rows": [_row(each, own_rate(self.rows, each.per_transaction)) for each in self.rows],
            "live": [_live(each, self.rows) for each in self.live],
            "growth": [_grown(each, self.growth) for each in self.growth],
            "emitters": [_emitted(each, self.emitters[0]) for each in self.emitters],
            "left_out": self.left_out,
        }

    def tables(self) -> list[ReportTable]:
        """The report as tables; empty tables are omitted."""
        tables = self._in_turn(), self._at_once(), self._growing(), self._one_at_a_time()
        return [table for table in tables if table.lines]

    def _in_turn(self) -> ReportTable:
        columns = ["system", "per transaction", "add", "drain", "both", "spread", "cq to it"]
        lines = [
            [
                row.system,
                f"{row.per_transaction:,}",
                _rate(row.add),
                "" if row.drain is None else _rate(row.drain),
                _rate(row.both),
                f"{row.both.spread:.0%}",
                _times(own_rate(self.rows, row.per_transaction), row.both.median),
            ]
            for row in self.rows
        ]
        return ReportTable("Adding and draining in turn, updates/s", columns, lines)

    def _at_once(self) -> ReportTable:
        columns = ["system", "per transaction", "asked", "added", "done", "p50 ms", "p99 ms", "max ms"]
        others = list(dict.fromkeys(row.system for row in self.rows if row.drain is None))
        lines = [
            [
                live.system,
                f"{live.per_transaction:,}",
                "all it can" if live.rate is None else f"{live.rate:,.0f}",
                _rate(live.added),
                _rate(live.done),
                *(f"{1000 * figure.median:,.1f}" for figure in (live.p50, live.p99, live.highest)),
                *(_shown(_ratio(live, self.rows, other)) for other in others),
            ]
            for live in self.live
        ]
        heads = [f"to {other}" for other in others]
        return ReportTable("Adding and combining at the same time, updates/s", columns + heads, lines)

    def _growing(self) -> ReportTable:
        columns = ["of", "size", "add", "drain", "both", "spread", f"to {COMPARED:,}"]
        lines = [
            [
                grown.what,
                f"{grown.size:,}",
                *(f"{figure.median:.2f}" for figure in (grown.add, grown.drain, grown.cost)),
                f"{grown.cost.spread:.0%}",
                _times(grown.cost.median, _compared(grown, self.growth)),
            ]
            for grown in self.growth
        ]
        return ReportTable("Cost as a queue grows, µs per update", columns, lines)

    def _one_at_a_time(self) -> ReportTable:
        columns = ["by", "callers", "committed", "spread", "to single adds"]
        lines = [
            [
                "single adds" if each.system == OWN else each.system,
                str(each.threads),
                _rate(each.add),
                f"{each.add.spread:.0%}",
                _times(each.add.median, self.emitters[0].add.median),
            ]
            for each in self.emitters
        ]
        return ReportTable("Increments one at a time in one process, per second", columns, lines)


@dataclass(frozen=True, slots=True)
class ReportTable:
    """A table: the first column has words, all other columns have numbers."""

    title: str
    columns: Sequence[str]
    lines: Sequence[Sequence[str]]


def own_rate(rows: Sequence[PhaseResult], per_transaction: int) -> float | None:
    """The rate of cq for adding and draining at this transaction size, None without one."""
    own = [row.both.median for row in rows if (row.system, row.per_transaction) == (OWN, per_transaction)]
    return own[0] if own else None


def _row(row: PhaseResult, own: float | None) -> dict[str, Any]:
    return {
        "system": row.system,
        "store": row.store,
        "per_transaction": row.per_transaction,
        **_medians(add=row.add, drain=row.drain, both=row.both),
        "cq_to_it": None if own is None else round(own / row.both.median, 4),
        "updates": row.updates,
    }


def _live(live: LiveResult, rows: Sequence[PhaseResult]) -> dict[str, Any]:
    others = [row.system for row in rows if row.per_transaction == live.per_transaction and row.drain is None]
    ratios = {other: ratio for other in others if (ratio := _ratio(live, rows, other)) is not None}
    return {
        "system": live.system,
        "store": live.store,
        "per_transaction": live.per_transaction,
        "rate": live.rate and round(live.rate, 1),
        **_medians(added=live.added, done=live.done),
        **_medians(1000, p50_ms=live.p50, p99_ms=live.p99, max_ms=live.highest),
        "probes": live.probes,
        "to": {other: round(ratio, 4) for other, ratio in ratios.items()},
    }


def _grown(grown: GrowthResult, results: Sequence[GrowthResult]) -> dict[str, Any]:
    compared = _compared(grown, results)
    return {
        "what": grown.what,
        "size": grown.size,
        "updates": grown.updates,
        **_medians(add_us=grown.add, drain_us=grown.drain, cost_us=grown.cost),
        "to_100000": compared and round(grown.cost.median / compared, 4),
    }


def _emitted(emitted: PhaseResult, first: PhaseResult) -> dict[str, Any]:
    return {
        "system": emitted.system,
        "store": emitted.store,
        "callers": emitted.threads,
        **_medians(committed=emitted.add),
        "to_single_adds": round(emitted.add.median / first.add.median, 4),
    }


def _medians(scale: float = 1, **figures: Figure | None) -> dict[str, Any]:
    """The medians under their names, then the values of each repetition."""
    medians: dict[str, Any] = {
        name: figure and round(scale * figure.median, 3) for name, figure in figures.items()
    }
    repetitions = {
        f"{name}_repetitions": figure and [round(scale * value, 3) for value in figure.values]
        for name, figure in figures.items()
    }
    return medians | repetitions


def _ratio(live: LiveResult, rows: Sequence[PhaseResult], system: str) -> float | None:
    """The rate at full speed, relative to that of another system with the same transaction size."""
    found = [row for row in rows if (row.system, row.per_transaction) == (system, live.per_transaction)]
    return live.done.median / found[0].both.median if found and live.rate is None else None


def _compared(grown: GrowthResult, results: Sequence[GrowthResult]) -> float | None:
    """The cost at the size `COMPARED`, None without one."""
    found = [each for each in results if (each.what, each.size) == (grown.what, COMPARED)]
    return found[0].cost.median if found else None


def _rate(figure: Figure) -> str:
    return f"{figure.median:,.0f}"


def _times(figure: float | None, other: float | None) -> str:
    return _shown(figure / other if figure is not None and other else None)


def _shown(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f}"
