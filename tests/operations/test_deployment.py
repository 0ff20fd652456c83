"""The files for deployments pass the checkers of their formats, and their commands and times are those of cq."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from packaging.requirements import Requirement

from cq.observers.worker.worker import GRACE_SECONDS
from tests.cli.commands import parse
from tests.kit.processes import run_program

FILES = Path(__file__).parents[2] / "docs" / "operate"
COMPOSE = yaml.safe_load((FILES / "compose.yaml").read_text())
KUBERNETES = list(yaml.safe_load_all((FILES / "kubernetes.yaml").read_text()))
UNITS = sorted(FILES.glob("*.service"))
UNIT = FILES / "cq-worker@.service"
ANALYZE = shutil.which("systemd-analyze") or ""
TOOLS = Path(sys.executable).parent

systemd = pytest.mark.skipif(not ANALYZE, reason="systemd-analyze is not installed")


def run(*command: str | Path) -> str:
    """What a checker prints on its standard output; it must succeed, and complain about nothing."""
    done = run_program(*map(str, command))
    assert (done.status, done.err) == (0, ""), done
    return done.out


def in_lists(found: Any) -> Iterator[list[str]]:
    """All lists of strings of a document, which commands and probes are."""
    if isinstance(found, dict):
        for each in found.values():
            yield from in_lists(each)
    elif isinstance(found, list):
        if found and all(isinstance(each, str) for each in found):
            yield found
        for each in found:
            yield from in_lists(each)


def in_scripts(words: list[str]) -> list[list[str]]:
    """The words themselves, and those of each line of a script for a shell among them."""
    lines = [shlex.split(line) for word in words if "\n" in word for line in word.splitlines()]
    return [words, *lines]


def commands() -> dict[str, list[list[str]]]:
    """{file: the commands of cq in it}, each without `cq` and, in a health check, without `CMD`."""
    dockerfile = (FILES / "Dockerfile").read_text()
    lists = {
        "Dockerfile": [json.loads(each) for each in re.findall(r"CMD (\[.*\])$", dockerfile, re.MULTILINE)],
        "compose.yaml": list(in_lists(COMPOSE)),
        "kubernetes.yaml": list(in_lists(KUBERNETES)),
        **{
            unit.name: [
                shlex.split(line) for line in re.findall(r"^ExecStart=(.*)$", unit.read_text(), re.MULTILINE)
            ]
            for unit in UNITS
        },
    }
    found: dict[str, list[list[str]]] = {}
    for file, each in lists.items():
        for words in (line for found in each for line in in_scripts(found)):
            command = words[words[:1] == ["CMD"] :]
            if command and Path(command[0]).name == "cq":
                found.setdefault(file, []).append(command[1:])
    return found


def test_hadolint_has_no_complaint_about_the_dockerfile() -> None:
    assert run(TOOLS / "hadolint", "--failure-threshold", "style", FILES / "Dockerfile") == ""


def requirements(file: str) -> dict[str, str]:
    """{package: its version} of a file, in which each package has hashes."""
    text = (FILES / file).read_text().replace("\\\n", "")
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    assert [line for line in lines if not re.search(r" --hash=sha256:[0-9a-f]{64}( |$)", line)] == []
    return dict(re.findall(r"^([a-z0-9-]+)==(\S+)", "\n".join(lines), re.MULTILINE))


def test_the_image_gets_packages_and_images_by_their_hashes_only() -> None:
    dockerfile = (FILES / "Dockerfile").read_text().replace("\\\n", "")
    installs = re.findall(r"pip install .*?(?=&&|$)", dockerfile, re.MULTILINE)

    for install in installs:
        assert "--no-deps" in install
        assert "--require-hashes" in install or ("--no-index" in install and "./wheels/" in install), install
    assert requirements("build-requirements.txt").keys() == {"setuptools"}
    assert re.findall(r"^FROM \S+?@(\S+)$", dockerfile, re.MULTILINE) == ["${PYTHON_DIGEST}"]
    for service in COMPOSE["services"].values():
        assert service["image"] == "shop:1" or re.search(r"@\$\{\w+_DIGEST:\?", service["image"])


def test_the_requirements_are_those_of_cq_with_the_client_of_the_cluster() -> None:
    project = tomllib.loads((FILES.parents[1] / "pyproject.toml").read_text())["project"]
    header, found = (FILES / "requirements.txt").read_text(), requirements("requirements.txt")
    extras = set(re.findall(r"--extra (\w+)", header))
    wanted = [
        *project["dependencies"],
        *(each for extra in extras for each in project["optional-dependencies"][extra]),
    ]
    version = re.search(r"ARG FDB_VERSION=(\S+)", (FILES / "Dockerfile").read_text())

    assert extras == {"fdb", "metrics", "postgresql", "web"}
    for requirement in map(Requirement, wanted):
        assert requirement.specifier.contains(found[requirement.name]), requirement
    assert version is not None
    assert found["foundationdb"] == version[1]


def test_the_compose_file_is_one() -> None:
    run(TOOLS / "check-jsonschema", "--builtin-schema", "vendor.compose-spec", FILES / "compose.yaml")


def test_services_are_published_to_this_machine_only_and_pods_open_the_metrics_only() -> None:
    published = [port for service in COMPOSE["services"].values() for port in service.get("ports", [])]
    (ingress,) = KUBERNETES[4]["spec"]["ingress"]

    assert [port.rpartition(":")[0] for port in published] == ["127.0.0.1:8080", "127.0.0.1:5432"]
    assert ingress["from"]
    assert [port["port"] for port in ingress["ports"]] == [9100]


def test_workers_and_the_dashboard_do_not_get_each_other_s_secrets() -> None:
    services = COMPOSE["services"]

    assert services["worker"]["environment"].keys() == {"CQ_STORE", "CQ_REPORTING_URL"}
    assert services["dashboard"]["environment"].keys() == {"CQ_STORE", "CQ_WEB_TOKEN"}
    files = [re.findall(r"^EnvironmentFile=(.*)$", unit.read_text(), re.MULTILINE) for unit in UNITS]
    assert files == [["/etc/cq/%i-web.env"], ["/etc/cq/%i-worker.env"]]


@pytest.mark.parametrize("document", KUBERNETES, ids=lambda document: str(document["kind"]))
def test_a_manifest_has_the_schema_of_its_kind(document: dict[str, Any]) -> None:
    kubernetes_validate.validate(document, "1.37", strict=True)


def test_containers_of_the_manifests_run_without_privileges_and_within_limits() -> None:
    pods = [
        KUBERNETES[1]["spec"]["template"]["spec"],
        KUBERNETES[3]["spec"]["jobTemplate"]["spec"]["template"]["spec"],
    ]
    for pod in pods:
        volumes = {volume["name"] for volume in pod["volumes"]}
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["serviceAccountName"] == KUBERNETES[0]["metadata"]["name"]
        for container in [*pod["initContainers"], *pod["containers"]]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert container["resources"]["requests"].keys() == {"cpu", "memory"}
            assert "memory" in container["resources"]["limits"]
            assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
    labels = KUBERNETES[1]["spec"]["template"]["metadata"]["labels"]
    assert KUBERNETES[2]["spec"]["selector"]["matchLabels"].items() <= labels.items()


@pytest.fixture(params=UNITS, ids=lambda unit: str(unit.name))
def unit(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A unit of the application `shop`, with a program in its place below a folder."""
    program = tmp_path / "srv" / "shop" / ".venv" / "bin" / "cq"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    template: Path = request.param
    unit = tmp_path / template.name.replace("@", "@shop")
    unit.write_text(template.read_text().replace("/srv/", f"{tmp_path}/srv/"))
    return unit


@systemd
def test_systemd_has_no_complaint_about_the_unit(unit: Path) -> None:
    assert run(ANALYZE, "verify", unit) == ""


def test_the_commands_at_the_top_of_the_page_install_what_the_unit_needs() -> None:
    page = (FILES / "deploy.md").read_text()
    installed = re.search(r"bin/pip install '/srv/cq\[([\w,]+)\]'", page)

    assert "--metrics" in UNIT.read_text()
    assert installed is not None
    assert {"fdb", "metrics"} <= set(installed[1].split(","))


@systemd
def test_the_unit_exposes_no_more_than_the_page_says(unit: Path) -> None:
    shown = run_program(str(ANALYZE), "security", "--offline=true", str(unit))
    if "Overall exposure" not in shown.out:
        pytest.skip(f"this systemd-analyze cannot rate a file: {shown.err}")
    level = float(shown.out.split("Overall exposure level")[1].split(": ")[1].split()[0])
    stated = re.search(r"exposure of each unit as ([\d.]+) of 10", (FILES / "deploy.md").read_text())

    assert stated is not None
    assert level <= float(stated[1]) + 0.5  # other versions of systemd have more criteria, or fewer


def test_every_deployment_gives_a_worker_more_time_to_stop_than_it_needs() -> None:
    (timeout,) = re.findall(r"^TimeoutStopSec=(\d+)$", UNIT.read_text(), flags=re.MULTILINE)
    compose = COMPOSE["services"]["worker"]["stop_grace_period"].removesuffix("s")
    pod = KUBERNETES[1]["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]

    for seconds in (timeout, compose, pod):
        assert float(seconds) >= GRACE_SECONDS + 10


@pytest.mark.parametrize(
    ("file", "command"),
    [(file, command) for file, found in commands().items() for command in found],
    ids=lambda each: each if isinstance(each, str) else " ".join(each),
)
def test_commands_have_the_words_that_the_command_line_takes(file: str, command: list[str]) -> None:
    parse(command)


def test_every_file_has_commands_of_cq() -> None:
    found = commands()

    assert {file: len(each) for file, each in found.items()} == {
        "Dockerfile": 2,
        "compose.yaml": 5,
        "kubernetes.yaml": 4,
        **{unit.name: 1 for unit in UNITS},
    }
    for file in ("Dockerfile", "compose.yaml", "kubernetes.yaml"):
        assert any(each[:2] == ["health", "--here"] for each in found[file]), file
