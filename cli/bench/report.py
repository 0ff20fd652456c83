"""The report of a benchmark, made from its JSON: ratios of the results, tables and a chart."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any, Final, NamedTuple

from cq.cli.bench.measures.measured_system import Result, spread
from cq.cli.bench.systems.backends import RIVALS
from cq.cli.bench.systems.system import OWN
from cq.cli.shared.chart import Bar, bar_chart, to_svg
from cq.cli.shared.output import quantity

COMPARED: Final = 100_000
"""The size of a growing queue whose cost the other costs are compared with."""

Report = dict[str, Any]
"""The JSON of a run: rates in updates per second, latencies in ms, costs in µs; all are medians.

Fields:
    machine: see `machine_facts`.
    settings: the settings of the run.
    rows: results of adding and draining in turn.
    live: results of adding and combining at the same time.
    exports: rates of an export into PostgreSQL, and of COPY of the same rows.
    growth: cost of an update as a queue grows.
    single_adds: results of single updates; the first one is for a transaction each.
    decisions: decisions per second, and the times to answer.
    tasks: results of adds by tasks; the first one is for threads.
    left_out: {name of a system without a measurement: reason}.
"""


def compare(report: Report) -> None:
    """Add to each result its ratio to the one that it is compared with."""
    rows = report["rows"]
    for row in rows:
        needs = RIVALS[row["system"]].needs if row["system"] in RIVALS else ""
        same = {"per_transaction": row["per_transaction"]}
        same |= {"workers": row["workers"]} if row["workers"] else {}
        own = _first(rows, system=f"{OWN}+{needs}" if needs else OWN, **same)
        row["cq_to_it"] = _ratio("both", own, row)
    for live in report["live"]:
        at_full_speed = [row for row in rows if row["drain"] is None] if live["rate"] is None else []
        live["to"] = {
            row["system"]: round(live["done"] / row["both"], 4)
            for row in at_full_speed
            if row["per_transaction"] == live["per_transaction"]
        }
    for grown in report["growth"]:
        compared = _first(report["growth"], system=grown["system"], what=grown["what"], size=COMPARED)
        grown["to_100000"] = _ratio("cost_us", grown, compared)
    for row in report["decisions"]:
        row["cq_to_it"] = _ratio("decisions", _first(report["decisions"], what=row["what"], system=OWN), row)
    for part, name in (("single_adds", "to_transactions"), ("tasks", "to_threads")):
        for result in report[part]:
            result[name] = _ratio("committed", result, report[part][0])


def _first(results: Sequence[Result], **wanted: object) -> Result | None:
    """The first result with these fields."""
    return next((each for each in results if wanted.items() <= each.items()), None)


def _ratio(name: str, result: Result | None, other: Result | None) -> float | None:
    return round(result[name] / other[name], 4) if result and other else None


class ReportTable(NamedTuple):
    """A table: the first column has words, all other columns have numbers."""

    title: str
    columns: Sequence[str]
    lines: Sequence[Sequence[str]]


_HEADS: Final = {
    "caller": "by",
    "what": "of",
    "rate": "asked",
    "add_us": "add",
    "drain_us": "drain",
    "cost_us": "both",
    "to_copy": "to COPY",
    "to_100000": f"to {COMPARED:,}",
}
"""{field of a result: the head of its column}, if it is not the name of the field."""
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
        "what system size add_us drain_us cost_us cost_us_repetitions to_100000",
    ),
    "decisions": (
        "Decisions per second, and time to answer",
        "what system per_transaction add drain decisions decisions_repetitions cq_to_it p50_ms p99_ms",
    ),
    "single_adds": (
        "Updates one at a time in one process, per second",
        "caller callers committed committed_repetitions to_transactions",
    ),
    "tasks": (
        "Adds of one update in one process, per second",
        "caller callers committed committed_repetitions to_threads",
    ),
}
"""{part of the report: the title of its table, and the fields in its columns}."""
_IF_SEVERAL: Final = {"rows": "workers", "live": "workers", "growth": "system"}
"""{part of the report: the field that has a column only if the results differ in it}."""


def tables(report: Report) -> list[ReportTable]:
    """The report as tables; empty tables are omitted."""
    found = []
    for part, (title, fields) in _TABLES.items():
        results, names = [_flat(each) for each in report[part]], fields.split()
        field = _IF_SEVERAL.get(part)
        if field and len({each[field] for each in results} - {None}) <= 1:
            names.remove(field)
        # To other systems: only results at full speed are compared with them.
        names += {
            name: None for each in results for name in each if name.startswith("to_") and part == "live"
        }
        heads = [
            "spread" if name.endswith("_repetitions") else _HEADS.get(name, name.replace("_", " "))
            for name in names
        ]
        if results:
            lines = [[_cell(name, each.get(name)) for name in names] for each in results]
            found.append(ReportTable(title, heads, lines))
    return found


def _flat(result: Result) -> Result:
    return {
        "caller": result["system"],
        **result,
        **{f"to_{name}": each for name, each in result.get("to", {}).items()},
    }


def _cell(name: str, value: Any) -> str:
    if value is None:
        return "all it can" if name == "rate" else ""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return f"{spread(value):.0%}"
    decimals = 1 if name.endswith("_ms") else 2 if name.endswith("_us") or "to_" in name else 0
    return f"{value:,.{decimals}f}"


def chart(report: Report) -> str:
    """The chart of adding and draining in turn, as SVG: a group of bars for each transaction size.

    Each bar has its number and the range of its repetitions.
    """
    rows = sorted(report["rows"], key=lambda row: row["per_transaction"])
    has_several = len({row["workers"] for row in rows if row["workers"]}) > 1
    groups = {
        f"{quantity(size, 'update')} per transaction": [_bar(row, has_several) for row in found]
        for size, found in groupby(rows, key=lambda row: row["per_transaction"])
    }
    machine, repetitions = report["machine"], report["settings"]["repetitions"]
    about = (
        f"{machine['cores']} cores, {machine['processor'] or machine['system']}; "
        f"{'one repetition' if repetitions == 1 else f'medians of {repetitions} repetitions, and their range'}"
    )
    return to_svg(bar_chart("Updates per second, adding and draining in turn", about, groups))


def _bar(row: Result, names_workers: bool) -> Bar:
    name, rates = row["system"], row["both_repetitions"]
    if names_workers and row["workers"]:
        name += f", {quantity(row['workers'], 'worker')}"
    return Bar(
        name, row["both"], f"{min(rates):,.0f} to {max(rates):,.0f}", row["system"].split("+")[0] == OWN
    )
