"""`cq web`: a dashboard in the browser."""

from __future__ import annotations

import os
import secrets
from typing import Any, Final

from cq.cli.operate.worker import LogFormat
from cq.cli.shared.help import CommandSet
from cq.cli.shared.options import Options, flag, option, option_set
from cq.cli.shared.output import note
from cq.cli.shared.processes import stop_on_signals
from cq.errors import InvalidConfiguration
from cq.observers.telemetry.logs import log_to_stderr
from cq.observers.telemetry.metrics import Address

TOKEN_ENV: Final = "CQ_WEB_TOKEN"  # noqa: S105 - the name of a variable
_LEAST_TOKEN: Final = 16
_TRANSACTION_MILLISECONDS: Final = 5_000
_LOOPBACK: Final = ("127.", "localhost", "::1", "[::1]")

commands = CommandSet()


@option_set
class WebOptions(Options):
    """The options of `cq web`."""

    listen: str = option("[HOST:]PORT", "Address to listen at.", "--listen", default="127.0.0.1:8080")
    operate: bool = flag("--operate", "Allow actions on queues, on links and on what was set aside.")
    host: list[str] | None = option(
        "NAME", "Another name of this server, such as that of a proxy; may be repeated."
    )
    secure_cookie: bool = flag(
        "--secure-cookie",
        "Browsers send the session's cookie over https only: for a server behind a proxy with TLS.",
    )
    log: LogFormat = option("text|json", "Format of log lines.", default=LogFormat.TEXT)


@commands.command(
    "web", examples=["cq web", "cq web --operate", "cq web --listen 127.0.0.1:9000 --store fdb:"]
)
def web(options: WebOptions) -> None:
    """Serve a dashboard of workers, queues and problems.

    Open the printed URL in a browser. Its token gives access to all values, so keep it secret. The environment variable
    CQ_WEB_TOKEN sets another one than a random one; it is not printed, and the first page asks for it. The pages follow
    the store by themselves, and the store gets a limited number of reads per second, whatever the number of open pages.
    A session ends after 12 hours, or with the button "Sign out".
    Without --operate they only read. The log on standard error has an event for each action. ^C ends the server.
    """
    server = server_module()
    log_to_stderr(as_json=options.log is LogFormat.JSON)
    token = _token()
    address = Address.parse(options.listen)
    db = options.open_store() if options.operate else options.read_store()
    db.options.set_transaction_timeout(_TRANSACTION_MILLISECONDS)
    if not address.host.startswith(_LOOPBACK):
        note(
            f"cq web: warning: {address.host} can be reached from other machines, and the connection is not encrypted: "
            "use 127.0.0.1 with an SSH tunnel, or a proxy with TLS"
        )
    running = server.Server(db, address, token, options)
    # A token from the environment is known to the operator, and logs must not keep it.
    url = running.url if TOKEN_ENV in os.environ else f"{running.url}/?token={token}"
    options.answer(f"cq web: open {url}", url=url, operates=options.operate)
    if options.log is LogFormat.TEXT:
        note(f"cq web: {'actions are allowed' if options.operate else 'read-only'}; ^C ends it")
    stop_on_signals(running.stop)
    running.run()


def _token() -> str:
    """The token: $CQ_WEB_TOKEN, or a random one. Never an option: other users can see the arguments of processes."""
    given = os.environ.get(TOKEN_ENV)
    if given is None:
        return secrets.token_urlsafe(24)
    if (
        len(given) < _LEAST_TOKEN
        or not given.isascii()
        or not given.replace("-", "").replace("_", "").isalnum()
    ):
        raise InvalidConfiguration(
            f"expected ${TOKEN_ENV} to have at least {_LEAST_TOKEN} letters, digits, '-' or '_'"
        )
    return given


def server_module() -> Any:
    """The module of the server; raises `InvalidConfiguration` without the packages of the extra."""
    try:
        from cq.cli.web import server
    except ImportError as error:
        if (error.name or "cq").partition(".")[0] == "cq":
            raise
        raise InvalidConfiguration(
            "the dashboard needs packages that are not installed: run `pip install 'combine-queue[web]'`"
        ) from error
    return server
