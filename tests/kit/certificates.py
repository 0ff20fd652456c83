"""Certificates for servers of tests, made by openssl."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from pathlib import Path

import pytest


def certified(folder: Path) -> tuple[ssl.SSLContext, Path]:
    """The context of a server at 127.0.0.1, and its certificate, for clients; skips the test without openssl."""
    program = shutil.which("openssl")
    if program is None:
        pytest.skip("no openssl to make a certificate with")
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    made = "req -x509 -newkey rsa:2048 -nodes -subj /CN=here -addext subjectAltName=IP:127.0.0.1 -days 2"
    subprocess.run(
        [program, *made.split(), "-keyout", str(key), "-out", str(certificate)],
        check=True,
        capture_output=True,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context, certificate
