"""A cluster that takes only connections with TLS, with certificates that the test makes: `openssl` and `fdbserver`."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from cq.store.foundationdb import TLS_VARIABLES
from tests.chaos.cluster import Cluster
from tests.cli.conftest import Cli

SERVER = os.environ.get("CQ_TEST_FDBSERVER")


@pytest.fixture
def certificates(tmp_path: Path) -> dict[str, str]:
    """The environment of a client: a certificate of an authority of the test's own, its key, and the authority's."""
    program = shutil.which("openssl")
    if program is None:
        pytest.skip("no openssl to make certificates with")

    def openssl(command: str) -> None:
        subprocess.run([program, *command.split()], cwd=tmp_path, check=True, capture_output=True)

    openssl("req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.pem -subj /CN=authority -days 2")
    openssl("req -newkey rsa:2048 -nodes -keyout key.pem -out request.pem -subj /CN=cq")
    openssl("x509 -req -in request.pem -CA ca.pem -CAkey ca.key -CAcreateserial -out certificate.pem -days 2")
    names = ("certificate.pem", "key.pem", "ca.pem")
    return dict(zip(TLS_VARIABLES, (str(tmp_path / name) for name in names), strict=True))


def test_a_cluster_with_tls_is_used_with_the_certificates_and_not_without(
    tmp_path: Path, cli: Cli, certificates: dict[str, str]
) -> None:
    if SERVER is None:
        pytest.skip("no server to start: CQ_TEST_FDBSERVER is not set")
    options = ("--tls-certificate-file", "--tls-key-file", "--tls-ca-file")
    tls = [part for pair in zip(options, certificates.values(), strict=True) for part in pair]
    cluster = Cluster(Path(SERVER), tmp_path, processes=1, tls=tls)
    try:
        cluster.start()
        cli.environment["CQ_STORE"] = cluster.url

        refused = cli.run("configure", "words", "--combiner", "sum")
        assert refused.status != 0
        assert (
            "it uses TLS: are FDB_TLS_CERTIFICATE_FILE, FDB_TLS_KEY_FILE, FDB_TLS_CA_FILE set" in refused.err
        )

        cli.environment |= certificates
        for command in ("configure words --combiner sum", "add words fox=2", "worker --drain"):
            ended = cli.run(*command.split())
            assert ended.status == 0, ended.err
        assert cli.run("get", "words", "fox").out == "fox\t2\n"
    finally:
        cluster.close()
