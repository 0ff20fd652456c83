"""Signatures of requests by the scheme of Standard Webhooks (https://www.standardwebhooks.com): HMAC-SHA256.

A signature covers the message's id, the time of the request and the body. So a receiver can refuse requests of other
senders, changed requests, and old requests that somebody repeats.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Final

from cq.observers.links.environment import read_variable
from cq.observers.links.target import LinkFailed

PREFIX: Final = "whsec_"
_SECRET_BYTES: Final = range(24, 65)


def read_secrets(env: str) -> list[bytes]:
    """Read the secrets in the environment variable `env`, or in the file that the variable `env` + `_FILE` names.

    Several secrets, separated by spaces or newlines, are for a change of the secret: each one signs every request.
    The file is read for each request, so a change needs no restart.

    Raises `LinkFailed`, without the secret, if there is none or one is malformed.
    """
    text, file = read_variable(env), read_variable(env, "_FILE")
    if not text and not file:
        raise LinkFailed(
            f"neither ${env} nor ${env}_FILE is set: give the secret of the webhook, or the path of a file with it"
        )
    if not text and file:
        try:
            text = Path(file).read_text(encoding="ascii")
        except (OSError, ValueError) as error:
            # Only the kind of the error: a variable with the secret in place of the path would be shown.
            raise LinkFailed(
                f"the file that ${env}_FILE names cannot be read: {type(error).__name__}"
            ) from None
    secrets = [_decoded(word) for word in (text or "").split()]
    if not secrets or None in secrets:
        raise LinkFailed(
            f"the secret in ${env} or its file is malformed: expected {PREFIX} and the base64 of 24 to 64 random bytes"
        )
    return [secret for secret in secrets if secret]


def _decoded(word: str) -> bytes | None:
    try:
        secret = base64.b64decode(word.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        return None
    return secret if len(secret) in _SECRET_BYTES else None


def signed_headers(secrets: Sequence[bytes], message: str, seconds: int, body: bytes) -> dict[str, str]:
    """The headers of a request: its id, its time in seconds since 1970, and a signature with each secret."""
    signed = f"{message}.{seconds}.".encode() + body
    signatures = (base64.b64encode(hmac.digest(secret, signed, sha256)).decode() for secret in secrets)
    return {
        "webhook-id": message,
        "webhook-timestamp": str(seconds),
        "webhook-signature": " ".join(f"v1,{signature}" for signature in signatures),
    }
