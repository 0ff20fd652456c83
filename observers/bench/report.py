"""What a benchmark has found, for programs and as the cells of tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from cq.observers.bench.figures import Figure
from cq.observers.bench.phases import Row


@dataclass
class Report:
    """All that a run has found.

    Attributes:
        machine: see `about.machine_facts`.
        settings: of the run.
        rows: of adding and draining.
        left_out: {what was not measured: why}.
    """

    machine: dict[str, Any]
    settings: dict[str, Any]
    rows: list[Row] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """For JSON; all rates in updates per second, as medians."""
        return {
            "machine": self.machine,
            "settings": self.settings,
            "rows": [_row(each) for each in self.rows],
            "left_out": self.left_out,
        }


def _row(row: Row) -> dict[str, Any]:
    figures = {"add": row.add, "drain": row.drain, "both": row.both}
    return {
        "system": row.system,
        "store": row.store,
        "per_transaction": row.per_transaction,
        **{what: figure and round(figure.median, 1) for what, figure in figures.items()},
        "repetitions": {what: figure and _rounded(figure) for what, figure in figures.items()},
        "updates": row.updates,
    }


def _rounded(figure: Figure) -> list[float]:
    return [round(value, 1) for value in figure.values]


COLUMNS = ["system", "per transaction", "add", "drain", "both", "spread", "cq to it"]
"""Of the table of adding and draining."""


def cells(rows: Sequence[Row]) -> list[list[str]]:
    """The lines of the table of adding and draining, under `COLUMNS`."""
    own = {row.per_transaction: row.both.median for row in rows if row.system == "cq"}
    return [_cells(row, own.get(row.per_transaction)) for row in rows]


def _cells(row: Row, own: float | None) -> list[str]:
    return [
        row.system,
        f"{row.per_transaction:,}",
        f"{row.add.median:,.0f}",
        "" if row.drain is None else f"{row.drain.median:,.0f}",
        f"{row.both.median:,.0f}",
        f"{row.both.spread:.0%}",
        "" if own is None else f"{own / row.both.median:.2f}",
    ]
