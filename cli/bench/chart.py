"""The chart of a benchmark: adding and draining in turn, with a group of bars for each transaction size."""

from __future__ import annotations

from itertools import groupby

from cq.cli.bench.report import OWN, BenchReport
from cq.cli.shared.chart import Bar, bar_chart
from cq.cli.shared.chart import to_svg as image
from cq.cli.shared.output import quantity


def to_svg(report: BenchReport) -> str:
    """The chart; each bar has its number and the range of its repetitions."""
    rows = sorted(report.rows, key=lambda row: row.per_transaction)
    has_several = len({row.workers for row in rows if row.workers}) > 1
    groups = {
        f"{quantity(size, 'update')} per transaction": [
            Bar(
                f"{row.system}, {quantity(row.workers, 'worker')}"
                if has_several and row.workers
                else row.system,
                row.both.median,
                f"{row.both.low:,.0f} to {row.both.high:,.0f}",
                row.system.split("+")[0] == OWN,
            )
            for row in found
        ]
        for size, found in groupby(rows, key=lambda row: row.per_transaction)
    }
    repetitions = report.settings["repetitions"]
    about = (
        f"{report.machine['cores']} cores, {report.machine['processor'] or report.machine['system']}; "
        f"{'one repetition' if repetitions == 1 else f'medians of {repetitions} repetitions, and their range'}"
    )
    return image(bar_chart("Updates per second, adding and draining in turn", about, groups))
