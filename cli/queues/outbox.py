"""`cq outbox`: outboxes in applications' databases, whose rows workers add to queues."""

from __future__ import annotations

from typing import Annotated

from cq.cli.shared.help import CommandSet
from cq.cli.shared.options import Options, Queue, option
from cq.cli.shared.output import print_line, quantity, say
from cq.observers.links.outbox.state import DEFAULT_ENV, OutboxSettings
from cq.observers.links.registry import opened_outbox
from cq.observers.links.spec import checked_env

commands = CommandSet("outbox", "Add rows of a table in an application's database to a queue.")


@commands.command("init", examples=["cq outbox init words"])
def init(
    options: Options,
    queue: Queue,
    url_env: Annotated[
        str,
        option(
            "NAME",
            "Environment variable with the URL of the application's database, for this command and for workers.",
            "--url-env",
        ),
    ] = DEFAULT_ENV,
    schema: Annotated[
        str | None, option("NAME", "Schema of the tables. Default: that of the connection.", "--schema")
    ] = None,
) -> None:
    """Give a queue an outbox.

    It creates the missing tables in the application's database. Workers then add the rows of the table cq_outbox to the
    queue, each exactly once. `cq.outbox.add` inserts rows within a transaction of the application. Repeating the
    command changes nothing.
    """
    from cq.observers.links.outbox import operate  # late: it imports SQLAlchemy

    settings = OutboxSettings(checked_env(url_env, DEFAULT_ENV), schema)
    created = operate.init(options.open_store(), queue, settings)
    text = f"created {', '.join(created)}" if created else "all tables exist, as expected"
    options.answer(text, queue=queue, created=created)


@commands.command("aside", examples=["cq outbox aside words --json"])
def aside(options: Options, queue: Queue) -> None:
    """List the first 1,000 rows that the queue refuses, with the error.

    They stay in the table cq_outbox. Correct or delete them there, and run `cq outbox retry`. With --json one line per
    row.
    """
    with opened_outbox(options.read_store(), queue) as opened:
        rows = opened.rows_aside()
    if not (rows or options.json):
        say(f"nothing is set aside in the outbox of queue {queue!r}")
    for row in rows:
        print_line(options.json, id=row.id, key=row.key_json, update=row.update_json, error=row.error)


@commands.command("retry", examples=["cq outbox retry words"])
def retry(options: Options, queue: Queue) -> None:
    """Have workers add refused rows again."""
    with opened_outbox(options.open_store(), queue) as opened:
        number = opened.retry()
    options.answer(f"workers add {quantity(number, 'row')} again", queue=queue, rows=number)


@commands.command("remove", examples=["cq outbox remove words"])
def remove(options: Options, queue: Queue) -> None:
    """Remove the outbox of a queue.

    Workers leave its rows alone. The tables and their rows stay.
    """
    with opened_outbox(options.open_store(), queue) as opened:
        left = opened.remove()
    stay = f"; no worker moves the {quantity(left, 'row')} that it leaves in the table" if left else ""
    options.answer(f"queue {queue!r} has no outbox any more{stay}", queue=queue, removed=True, rows=left)
