"""`cq series`: the values of keys by minutes, hours, days ..., for a queue with a roll-up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final

import typer

import cq
from cq.app import App
from cq.cli.shared.chart import DRAWN, MAX_LINES, drawable, line_chart, sparkline
from cq.cli.shared.help import CommandSet
from cq.cli.shared.options import WORDS, Queue, argument, flag, option, option_set
from cq.cli.shared.output import as_word, make_console, note, print_table, say
from cq.cli.shared.rows import AppRowsOptions, print_rows, print_values, whole_file
from cq.config.queue import QueueConfig, read_config
from cq.durations import duration
from cq.encoding.codec import ValueType
from cq.encoding.columns import Field
from cq.encoding.json_values import key_from_word, value_from_word
from cq.encoding.sketches.sketch import ItemCount
from cq.errors import InvalidData
from cq.tables.rows import TableRows

_TIME: Final = "%Y-%m-%d %H:%M:%S"


def series_chart(config: QueueConfig, last: str, found: Mapping[Any, Sequence[tuple[int, Any]]]) -> str:
    """The chart as SVG; a slot without a value is a gap.

    Raises `typer.BadParameter` for more lines than a chart has, and `InvalidData` for values that are no numbers from 0
    on.
    """
    parts = DRAWN.get(config.value.name, [""])
    if len(found) * len(parts) > MAX_LINES:
        raise typer.BadParameter(
            f"a chart has at most {MAX_LINES} lines: give at most {MAX_LINES // len(parts)} keys"
        )
    lines = {
        f"{part} {as_word(key)}".strip(): [_number(config, value, part) for _, value in slots]
        for key, slots in found.items()
        for part in parts
    }
    starts = [start for start, _ in next(iter(found.values()))]
    by = f" by {duration(starts[1] - starts[0])}" if len(starts) > 1 else ""
    return line_chart(f"{config.name}{by}", f"the last {last}", starts, lines)


commands = CommandSet()


@option_set
class SeriesOptions(AppRowsOptions):
    """The options of `cq series`."""

    last: str = option("DURATION", "Length of the span of time: 90m, 24h, 7d ...", default="24h")
    by: str | None = option(
        "DURATION", "Length of a slot: 1m, 1h, 1d ... Default: the shortest that gives at most 100 slots."
    )
    fill: str | None = option(
        "VALUE",
        "Value of slots without a value, such as 0. Default: no value; for distinct and theta a count of 0.",
    )
    merged: bool = flag("--merged", "Print one value for each key: of all slots together.")
    chart: Path | None = option("FILE", "Also write a chart with a line for each key to this file, as SVG.")


@commands.command(
    "series",
    examples=[
        "cq series hits /index --last 24h",
        "cq series hits /index /about --last 7d --by 1d --fill 0 --format csv",
        "cq series hits /index --last 30m --merged",
        "cq series hits /index /about --last 24h --chart hits.svg",
    ],
)
def series(
    options: SeriesOptions,
    queue: Queue,
    keys: Annotated[list[str], argument("KEY", "Keys to read. " + WORDS)],
) -> None:
    """Print the values of keys by minutes, hours or days.

    For a queue with a roll-up, see `cq configure --rollup`. Slots begin at whole minutes, hours or days in UTC; the
    first and the last one may have parts outside of the span. With --json the lines are `{"key": ..., "start": ...,
    "value": ...}`, or with --merged `{"key": ..., "value": ...}`. A queue with a combiner of your own needs --app for
    slots of several periods, and for --merged. With --merged, the exit status is 3 if a key has no value.
    """
    of_slots = options.fill is not None or options.format_name or options.output or options.chart
    if options.merged and of_slots:
        raise typer.BadParameter("give either --merged or --fill, --format, --output and --chart")
    target = options.target()
    app, db = options.load_app(), options.read_store()
    config, found = db.transact(lambda tr: _read(tr, options, app, queue, keys))
    if options.merged:
        print_values(found.items(), json=options.json)
        return
    if options.chart is not None:
        drawn = series_chart(config, options.last, found)  # raises its errors before the first line of output
        with whole_file(str(options.chart)) as write:
            write(drawn.encode())
        note(f"wrote a chart to {options.chart}")
    if target.format is None and make_console().is_terminal:
        _show(found)
    else:
        start = Field("start", ValueType("datetime"))
        fields = [Field("key", config.key), start, Field("value", config.value)]
        rows = [(key, _moment(at), value) for key, slots in found.items() for at, value in slots]
        print_rows(TableRows(fields, [rows]), target)


def _read(
    tr: Any, options: SeriesOptions, app: App | None, queue: str, keys: Sequence[str]
) -> tuple[QueueConfig, dict[Any, Any]]:
    """The queue, and {key: its slots, or with --merged its value}."""
    config, last, by = read_config(tr.snapshot, queue), options.last, options.by
    handle = cq.CombineQueue(queue, combiner=app.combiner(config) if app else None)
    wanted = list(dict.fromkeys(key_from_word(config.key, word) for word in keys))
    if options.merged:
        return config, {key: handle.merged_series(tr.snapshot, key, last=last, by=by) for key in wanted}
    fill = _default_fill(config) if options.fill is None else value_from_word(config.value, options.fill)
    return config, handle.series_of_many(tr.snapshot, wanted, last=last, by=by, fill=fill)


def _default_fill(config: QueueConfig) -> Any:
    """The value of slots without a value: a count of 0 for sketches that count items, as nobody counted one there."""
    kind = config.value.sketch
    return kind.empty() if kind is not None and issubclass(kind, ItemCount) else None


def _show(found: dict[Any, list[tuple[int, Any]]]) -> None:
    """A table with a column for each key, and below it a chart of one line for each key with numbers."""
    names = [as_word(key) for key in found]
    starts = [start for start, _ in next(iter(found.values()))]
    columns = [
        ["-" if value is None else as_word(_shown(value)) for _, value in slots] for slots in found.values()
    ]
    rows = zip((f"{_moment(start):{_TIME}}" for start in starts), *columns, strict=True)
    print_table(["start (UTC)", *names], rows, right=names)
    for name, slots in zip(names, found.values(), strict=True):
        chart = _chart([_shown(value) for _, value in slots])
        if chart:
            say(f"{chart}  {name}")


def _shown(value: Any) -> Any:
    """A value on a terminal: the estimate of a sketch that counts items."""
    return value.estimate if isinstance(value, ItemCount) else value


def _chart(values: Sequence[Any]) -> str:
    """The values as blocks; empty if they are not numbers from 0 on."""
    drawn = [drawable(value) for value in values]
    is_known = [value is not None for value in values]
    return sparkline(drawn) if any(is_known) and is_known == [number is not None for number in drawn] else ""


def _moment(start: int) -> datetime:
    return datetime.fromtimestamp(start, UTC)


def _number(config: QueueConfig, value: Any, part: str) -> float | None:
    number = value.figures()[part] if part and value is not None else value
    if number is None:
        return None
    drawn = drawable(number)
    if drawn is None:
        raise InvalidData(
            f"a chart needs numbers from 0 on: a value of queue {config.name!r} is {as_word(value)[:80]}"
        )
    return drawn
