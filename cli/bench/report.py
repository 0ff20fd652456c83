"""The report of a benchmark, as JSON and as tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from cq.cli.bench.measures.figures import Figure
from cq.cli.bench.measures.growth import COMPARED, GrowthResult
from cq.cli.bench.measures.live import LiveResult
from cq.cli.bench.measures.phases import PhaseResult
from cq.cli.bench.systems.system import DISTINCT, PERIODS

T = TypeVar("T")

OWN: Final = "cq"
_OWN_OF: Final = {PERIODS: "cq+rollup", DISTINCT: "cq+distinct"}
"""{system: the queue that has the same results}; the others are compared with `OWN`."""


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
        tasks: results of adds by tasks; the first one is for threads.
        left_out: {name of a system without a measurement: reason}.
    """

    machine: dict[str, Any]
    settings: dict[str, Any]
    rows: list[PhaseResult] = field(default_factory=list)
    live: list[LiveResult] = field(default_factory=list)
    growth: list[GrowthResult] = field(default_factory=list)
    emitters: list[PhaseResult] = field(default_factory=list)
    tasks: list[PhaseResult] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """The report for JSON: rates in updates per second, latencies in ms, costs in µs; all are medians."""
        return {
            "machine": self.machine,
            "settings": self.settings,
            "rows": [_row(each, self.rows) for each in self.rows],
            "live": [_live(each, self.rows) for each in self.live],
            "growth": [_grown(each, self.growth) for each in self.growth],
            "emitters": [_committed(each, to_single_adds=self.emitters[0]) for each in self.emitters],
            "tasks": [_committed(each, to_threads=self.tasks[0]) for each in self.tasks],
            "left_out": self.left_out,
        }

    def tables(self) -> list[ReportTable]:
        """The report as tables; empty tables are omitted."""
        found, tables = self.as_dict(), []
        if self.emitters:
            found["emitters"][0]["system"] = "single adds"
        others = dict.fromkeys(row.system for row in self.rows if row.drain is None)
        for part, (title, usual) in _TABLES.items():
            compared = others if part == "live" else ()
            several = [
                column
                for column in _IF_SEVERAL
                if len({each.get(column[1]) for each in found[part]} - {None}) > 1
            ]
            columns = [column for column in usual if column in several or column not in _IF_SEVERAL]
            columns += [(f"to {other}", other, "{:.2f}") for other in compared]
            records = [{**each, **each.get("to", {})} for each in found[part]]
            lines = [[_cell(each.get(name), shape) for _, name, shape in columns] for each in records]
            if lines:
                tables.append(ReportTable(title, [head for head, _, _ in columns], lines))
        return tables


@dataclass(frozen=True, slots=True)
class ReportTable:
    """A table: the first column has words, all other columns have numbers."""

    title: str
    columns: Sequence[str]
    lines: Sequence[Sequence[str]]


_SPREAD: Final = "{:.0%}"
_SIZE: Final = ("per transaction", "per_transaction", "{:,}")
_WORKERS: Final = ("workers", "workers", "{}")
_GROWN: Final = ("system", "system", "{}|")
_IF_SEVERAL: Final = (_WORKERS, _GROWN)
"""Columns of tables with several numbers of workers, or systems that grow."""
_COMMITTED: Final = (
    ("by", "system", "{}"),
    ("callers", "callers", "{}"),
    ("committed", "committed", "{:,.0f}"),
    ("spread", "committed_repetitions", _SPREAD),
)
_TABLES: Final[dict[str, tuple[str, list[tuple[str, str, str]]]]] = {
    "rows": (
        "Adding and draining in turn, updates/s",
        [
            ("system", "system", "{}"),
            _SIZE,
            _WORKERS,
            ("add", "add", "{:,.0f}"),
            ("drain", "drain", "{:,.0f}"),
            ("both", "both", "{:,.0f}"),
            ("spread", "both_repetitions", _SPREAD),
            ("cq to it", "cq_to_it", "{:.2f}"),
        ],
    ),
    "live": (
        "Adding and combining at the same time, updates/s",
        [
            ("system", "system", "{}"),
            _SIZE,
            _WORKERS,
            ("asked", "rate", "{:,.0f}|all it can"),
            ("added", "added", "{:,.0f}"),
            ("done", "done", "{:,.0f}"),
            ("p50 ms", "p50_ms", "{:,.1f}"),
            ("p99 ms", "p99_ms", "{:,.1f}"),
            ("max ms", "max_ms", "{:,.1f}"),
        ],
    ),
    "growth": (
        "Cost as a queue grows, µs per update",
        [
            ("of", "what", "{}"),
            _GROWN,
            ("size", "size", "{:,}"),
            ("add", "add_us", "{:.2f}"),
            ("drain", "drain_us", "{:.2f}"),
            ("both", "cost_us", "{:.2f}"),
            ("spread", "cost_us_repetitions", _SPREAD),
            (f"to {COMPARED:,}", "to_100000", "{:.2f}"),
        ],
    ),
    "emitters": (
        "Increments one at a time in one process, per second",
        [*_COMMITTED, ("to single adds", "to_single_adds", "{:.2f}")],
    ),
    "tasks": (
        "Adds of one update in one process, per second",
        [*_COMMITTED, ("to threads", "to_threads", "{:.2f}")],
    ),
}
"""{part of the report: (title of its table, columns)}; a column is its head, a name in the JSON, and a format.

A format is followed by the text for a value of None, if that is not empty.
"""


def _cell(value: Any, shape: str) -> str:
    shape, _, none = shape.partition("|")
    if value is None:
        return none
    return shape.format(Figure(tuple(value)).spread if isinstance(value, list) else value)


def _row(row: PhaseResult, rows: Sequence[PhaseResult]) -> dict[str, Any]:
    same = {"per_transaction": row.per_transaction} | ({"workers": row.workers} if row.workers else {})
    own = _found(rows, system=_OWN_OF.get(row.system, OWN), **same)
    return {
        **_attributes(row, "system", "store", "per_transaction", "workers", "updates"),
        **_medians(add=row.add, drain=row.drain, both=row.both),
        "cq_to_it": own and _ratio(own.both, row.both),
    }


def _live(live: LiveResult, rows: Sequence[PhaseResult]) -> dict[str, Any]:
    others = [row for row in rows if row.per_transaction == live.per_transaction and row.drain is None]
    return {
        **_attributes(live, "system", "store", "per_transaction", "workers", "probes"),
        "rate": live.rate and round(live.rate, 1),
        **_medians(added=live.added, done=live.done),
        **_medians(1000, p50_ms=live.p50, p99_ms=live.p99, max_ms=live.highest),
        "to": {other.system: _ratio(live.done, other.both) for other in others if live.rate is None},
    }


def _grown(grown: GrowthResult, results: Sequence[GrowthResult]) -> dict[str, Any]:
    compared = _found(results, system=grown.system, what=grown.what, size=COMPARED)
    return {
        **_attributes(grown, "system", "what", "size", "updates"),
        **_medians(add_us=grown.add, drain_us=grown.drain, cost_us=grown.cost),
        "to_100000": compared and _ratio(grown.cost, compared.cost),
    }


def _committed(result: PhaseResult, **compared: PhaseResult) -> dict[str, Any]:
    return {
        **_attributes(result, "system", "store"),
        "callers": result.threads,
        **_medians(committed=result.add),
        **{name: _ratio(result.add, other.add) for name, other in compared.items()},
    }


def _attributes(result: object, *names: str) -> dict[str, Any]:
    return {name: getattr(result, name) for name in names}


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


def _found(results: Sequence[T], **wanted: object) -> T | None:
    """The first result with these attributes."""
    return next((each for each in results if all(getattr(each, k) == v for k, v in wanted.items())), None)


def _ratio(figure: Figure, other: Figure) -> float:
    return round(figure.median / other.median, 4)
