"""The report of a benchmark, made from its JSON: ratios of the results, and tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from cq.cli.bench.measures.measured_system import Result, spread
from cq.cli.bench.systems.backends import RIVALS
from cq.cli.bench.systems.system import OWN

Report = dict[str, Any]
"""The JSON of a run: rates in updates per second, latencies in ms, costs in µs; all are medians.

Fields:
    machine: see `machine_facts`.
    settings: the settings of the run.
    rows: results of adding and draining in turn.
    live: results of adding and combining at the same time.
    exports: rates of an export into PostgreSQL, and of COPY of the same rows.
    growth: cost of an update as a queue grows.
    decisions: decisions per second, and the times to answer.
    single_adds: results of single updates.
    left_out: {name of a system without a measurement: reason}.
"""


def compare(report: Report) -> None:
    """Add to each result its ratio to the one that it is compared with."""
    rows = report["rows"]
    for row in rows:
        needs = RIVALS[row["system"]].needs if row["system"] in RIVALS else ""
        same = {"per_transaction": row["per_transaction"]}
        same |= {"workers": row["workers"]} if row["system"].startswith(OWN) else {}
        own = _first(rows, system=f"{OWN}+{needs}" if needs else OWN, **same)
        row["cq_to_it"] = _ratio("both", own, row)
    for row in report["decisions"]:
        row["cq_to_it"] = _ratio("decisions", _first(report["decisions"], what=row["what"], system=OWN), row)


def _first(results: Sequence[Result], **wanted: object) -> Result | None:
    """The first result with these fields."""
    return next((each for each in results if wanted.items() <= each.items()), None)


def _ratio(name: str, result: Result | None, other: Result) -> float | None:
    return round(result[name] / other[name], 4) if result else None


class ReportTable(NamedTuple):
    """A table: the first column has words, all other columns have numbers."""

    title: str
    columns: Sequence[str]
    lines: Sequence[Sequence[str]]


_TABLES: Final = {
    "rows": (
        "Adding and draining in turn, updates/s",
        "system per_transaction workers add drain both both_repetitions cq_to_it",
    ),
    "live": (
        "Adding and combining at the same time, updates/s",
        "system per_transaction workers rate added done p50_ms p99_ms max_ms",
    ),
    "exports": (
        "Export of new rows to PostgreSQL and COPY of the same rows, rows/s",
        "system size exported copied to_copy to_copy_repetitions",
    ),
    "growth": (
        "Cost as a queue grows, µs per update",
        "what system size add_us drain_us cost_us cost_us_repetitions",
    ),
    "decisions": (
        "Decisions per second, and time to answer",
        "what system per_transaction add drain decisions decisions_repetitions cq_to_it p50_ms p99_ms",
    ),
    "single_adds": (
        "Updates one at a time in one process, per second",
        "system callers committed committed_repetitions",
    ),
}
"""{part of the report: the title of its table, and the fields in its columns}."""


def tables(report: Report) -> list[ReportTable]:
    """The report as tables; empty tables are omitted."""
    found = []
    for part, (title, fields) in _TABLES.items():
        names = fields.split()
        lines = [[_cell(name, each.get(name)) for name in names] for each in report[part]]
        heads = ["spread" if name.endswith("_repetitions") else name.replace("_", " ") for name in names]
        if lines:
            found.append(ReportTable(title, heads, lines))
    return found


def _cell(name: str, value: Any) -> str:
    if value is None:
        return "all it can" if name == "rate" else ""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return f"{spread(value):.0%}"
    decimals = 1 if name.endswith("_ms") else 2 if name.endswith("_us") or "to_" in name else 0
    return f"{value:,.{decimals}f}"
