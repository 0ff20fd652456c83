"""The token of the dashboard and its sessions: signed cookies for 12 hours, or until their browser signs out."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from typing import Final, NamedTuple, TypeVar

from itsdangerous import BadData, Signer, TimestampSigner

from cq import runtime

S = TypeVar("S", bound=Signer)

SESSION_SECONDS: Final = 12 * 3_600
"""The lifetime of a session."""
_NAME_BYTES: Final = 16


class _SessionSigner(TimestampSigner):
    """Signs a session's id with the time of its begin, by the clock of `cq.runtime`."""

    def get_timestamp(self) -> int:
        return int(runtime.time())


class Session(NamedTuple):
    """A session: its id, and its end in seconds since 1970."""

    id: str
    ends: float


class WebAccess:
    """Who may use a server: its token, its sessions, and the host names under which browsers may open it.

    The cookie has a random id, its time and a signature; the server stores only the ids that were signed out. So a
    server with the same token and port accepts a session after a restart, and no other server accepts it.

    Browsers send a cookie to all ports of a host. So its name depends on the token and the port, too: two servers on
    one host do not replace each other's cookies.

    Args:
        token: the secret of the server.
        port: at which it listens.
        hosts: names in addition to localhost, this machine's name, and all IP addresses.
        is_secure: whether browsers may send the cookie over https only.

    Attributes:
        cookie: the name of the cookie.
    """

    def __init__(
        self, token: str, port: int, hosts: frozenset[str] = frozenset(), *, is_secure: bool = False
    ) -> None:
        def signer(kind: type[S], purpose: str) -> S:
            salt = f"cq web {port} {purpose}"
            return kind(token, salt=salt, key_derivation="hmac", digest_method=hashlib.sha256)

        self._sessions, self._forms = signer(_SessionSigner, "session"), signer(Signer, "form")
        name = f"cq-web-{signer(Signer, 'cookie').get_signature('name').hex()[:12]}"
        # Browsers refuse a cookie with this prefix from another host, from a path, and without https.
        self.cookie = f"__Host-{name}" if is_secure else name
        self.hosts, self.is_secure = hosts, is_secure
        self._token = token.encode()
        self._ended: dict[str, float] = {}

    def is_token(self, given: str) -> bool:
        """Whether this is the token, compared in constant time."""
        return hmac.compare_digest(given.encode(errors="replace"), self._token)

    def begin(self) -> str:
        """A new session, as the value of the cookie."""
        return self._sessions.sign(secrets.token_hex(_NAME_BYTES)).decode()

    def find(self, cookie: str) -> Session | None:
        """The session of a cookie; None unless this server signed it in the past 12 hours and it was not signed out."""
        try:
            name, begun = self._sessions.unsign(
                cookie.encode(errors="replace"), SESSION_SECONDS, return_timestamp=True
            )
        except BadData:
            return None
        session = Session(name.decode(), begun.timestamp() + SESSION_SECONDS)
        return session if self.is_live(session) else None

    def is_live(self, session: Session) -> bool:
        """Whether a session has not ended."""
        return session.id not in self._ended and runtime.time() < session.ends

    def end(self, session: Session) -> None:
        """Sign a session out: its cookie is refused from now on, also in copies."""
        now = runtime.time()
        self._ended = {name: ends for name, ends in self._ended.items() if ends > now} | {
            session.id: session.ends
        }

    def form_token(self, session: Session) -> str:
        """The token that forms of a session send."""
        return self._forms.get_signature(session.id).decode()

    def is_form_token(self, session: Session, given: str) -> bool:
        """Whether a form has the token of its session, compared in constant time."""
        return self._forms.verify_signature(session.id, given.encode(errors="replace"))
