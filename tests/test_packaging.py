"""What is shipped is what the tree holds: no module forgotten, nothing else taken along."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from cq import distribution
from tests.kit.processes import StartedProcesses, ended, run_program, wait_for_line

ROOT = Path(__file__).parents[1]
TOP_FOLDERS = {"cq": "cq", "observers": "cq/observers", "cli": "cq/cli"}
"""Where each top folder's modules stand in the distribution."""


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel built from the source distribution of a copy of the tree.

    A copy, since setuptools leaves `build/` behind and ships stale modules that it finds there.
    """
    tree = tmp_path_factory.mktemp("tree")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    for name in TOP_FOLDERS:
        shutil.copytree(ROOT / name, tree / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(tree / "dist"), str(tree)]
    built = run_program(*command)
    assert built.status == 0, built
    (file,) = (tree / "dist").glob("*.whl")
    return zipfile.ZipFile(file)


def modules_in_tree() -> set[str]:
    found = {"cq/py.typed"}
    for folder, package in TOP_FOLDERS.items():
        for where, _, names in os.walk(ROOT / folder):  # walk() does not follow the links
            inside = PurePosixPath(package) / Path(where).relative_to(ROOT / folder)
            kinds = (".py", ".html", ".css", ".js", ".svg")
            found |= {str(inside / name) for name in names if name.endswith(kinds)}
    return found


def test_the_wheel_holds_exactly_the_modules_of_the_tree(wheel: zipfile.ZipFile) -> None:
    """A new subpackage fails here until pyproject.toml names it."""
    shipped = {name for name in wheel.namelist() if not PurePosixPath(name).parts[0].endswith(".dist-info")}

    assert shipped == modules_in_tree()


def test_the_wheel_has_the_licence_and_installs_one_command(wheel: zipfile.ZipFile) -> None:
    (entry_points,) = (name for name in wheel.namelist() if name.endswith("/entry_points.txt"))

    assert wheel.read(entry_points).decode().split("\n") == ["[console_scripts]", "cq = cq.__main__:main", ""]
    assert any(name.endswith("/licenses/LICENSE") for name in wheel.namelist())


@pytest.fixture(scope="session")
def installed(wheel: zipfile.ZipFile, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the wheel is installed. Its dependencies are those of this environment."""
    folder = tmp_path_factory.mktemp("installed")
    options = ["--no-index", "--no-deps", "--target", str(folder)]
    done = run_program(sys.executable, "-m", "pip", "install", *options, str(wheel.filename))
    assert done.status == 0, done
    return folder


def of(installed: Path, command: list[str], folder: Path) -> str:
    """What a command prints in a folder, with the installed cq and not that of this clone."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("CQ_")}
    environment["PYTHONPATH"] = str(installed)
    done = run_program(*command, cwd=folder, env=environment)
    assert done.status == 0, done
    return done.out


def test_an_application_uses_the_installed_wheel(installed: Path, tmp_path: Path) -> None:
    """The command and the import are `cq`, and `combine-queue` is the name of what pip has installed."""
    cq = str(installed / "bin" / "cq")
    program = "import cq, cq.observers.worker; print(cq.__file__, cq.observers.worker.__file__, sep='\\n')"

    assert of(installed, [cq, "--version"], tmp_path) == f"cq {project()['project']['version']}\n"
    of(installed, [cq, "configure", "words", "--combiner", "sum"], tmp_path)
    of(installed, [cq, "add", "words", "a=1"], tmp_path)
    of(installed, [cq, "worker", "--drain"], tmp_path)
    assert of(installed, [cq, "get", "words", "a"], tmp_path) == "a\t1\n"
    for file in of(installed, [sys.executable, "-c", program], tmp_path).splitlines():
        assert Path(file).is_relative_to(installed)


def test_extras_that_are_named_exist_and_the_page_about_installing_has_all(wheel: zipfile.ZipFile) -> None:
    """In messages, pages and examples; the extras are those of the built wheel, for which pip is asked."""
    (metadata,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    extras = set(re.findall(r"^Provides-Extra: (.*)$", wheel.read(metadata).decode(), flags=re.MULTILINE))
    page = (ROOT / "docs/operate/deploy.md").read_text()
    found: dict[str, set[str]] = {}
    for file in files_that_name_extras():
        text = file.read_text()
        for wanted in re.findall(r"combine-queue\[([\w,]+)\]", text):
            found.setdefault(file.name, set()).update(wanted.split(","))
        assert not re.search(r"pip install (-\S+ )*['\"]?cq\b", text), f"{file.name} installs another project"
        for extra in re.findall(r"install_command\([\"'](\w+)", text):
            found.setdefault(file.name, set()).add(extra)

    assert {name: wanted - extras for name, wanted in found.items() if wanted - extras} == {}
    assert {"pyproject.toml", "foundationdb.py", "metrics.py", "deploy.md"} <= set(found)
    rows = re.findall(r"^\| (`.*?) \|", page.split("### Extras")[1].split("\n## ")[0], flags=re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", "".join(rows))) == extras


def files_that_name_extras() -> list[Path]:
    top = [ROOT / "pyproject.toml", *ROOT.glob("*.md")]
    below = [file for folder in ("cq", "observers", "cli", "docs") for file in (ROOT / folder).rglob("*")]
    return top + [file for file in below if file.suffix in (".py", ".md") or file.name == "Dockerfile"]


def test_the_page_about_installing_names_the_files_that_a_build_writes(wheel: zipfile.ZipFile) -> None:
    wheels = [Path(str(wheel.filename)).name, f"combine_queue-{project()['project']['version']}.tar.gz"]
    page = (ROOT / "docs/operate/deploy.md").read_text()
    shown = re.findall(r"combine_queue-[\w.-]*\.(?:whl|tar\.gz)", page)

    assert shown
    assert set(shown) <= set(wheels)


@pytest.mark.parametrize("link", ["observers", "cli"])
def test_the_links_are_relative_so_that_a_clone_works_anywhere(link: str) -> None:
    assert os.readlink(ROOT / "cq" / link) == f"../{link}"


def test_messages_name_the_distribution() -> None:
    name: str = project()["project"]["name"]

    assert name == distribution.NAME


def test_the_version_of_a_clone_that_is_not_installed_is_unknown(tmp_path: Path) -> None:
    program = f"import runpy; print(runpy.run_path({str(ROOT / 'cq/distribution.py')!r})['version']())"
    without_packages = [sys.executable, "-S", "-c", program]

    assert subprocess.check_output(without_packages, cwd=tmp_path, text=True) == "unknown\n"


def test_ci_runs_the_test_command_of_the_readme() -> None:
    """`.ci/run` finds it by this pattern; two such lines, or none, would make it run something else."""
    pattern = re.search(r"grep -E '(.*)' README.md", (ROOT / ".ci/run").read_text())
    assert pattern is not None

    lines = (ROOT / "README.md").read_text().splitlines()

    command = "python3 -m venv .venv && .venv/bin/pip install -q -e '.[test]' && .venv/bin/python -m pytest -n logical"
    assert [line for line in lines if re.search(pattern[1], line)] == [command]
    assert f"\n{command}\n" in (ROOT / "CONTRIBUTING.md").read_text()


def dockerfile_steps() -> list[tuple[str, str]]:
    """Each instruction of the Dockerfile and its text, without comments, in one line."""
    lines = (ROOT / "docs/operate/Dockerfile").read_text().splitlines()
    text = "\n".join(line for line in lines if not line.startswith("#")).replace("\\\n", " ")
    steps = (line.split(maxsplit=1) for line in text.splitlines() if line)
    return [(instruction, " ".join(rest.split())) for instruction, rest in steps]


def copy_context(context: Path, image: Path, sources: list[str]) -> None:
    """`COPY source... target`: the content of a folder, or files."""
    *files, target = sources
    for name in files:
        if (context / name).is_dir():
            shutil.copytree(context / name, image / target)
        else:
            shutil.copy(context / name, image / target)


def test_the_steps_of_the_dockerfile_make_a_worker_that_is_healthy_and_stops(
    wheel: zipfile.ZipFile, tmp_path: Path, processes: StartedProcesses
) -> None:
    """Without Docker: the folder `image` stands for the image, and dependencies are those of this environment."""
    context, image, site = tmp_path / "context", tmp_path / "image", tmp_path / "site"
    (context / "wheels").mkdir(parents=True)
    (context / "shop").mkdir()
    (image / "bin").mkdir(parents=True)
    shutil.copy(str(wheel.filename), context / "wheels")
    (context / "shop" / "__init__.py").touch()
    (context / "shop" / "counts.py").write_text("import cq\n\napp = cq.App()\n")
    for name in ("build-requirements.txt", "requirements.txt"):
        shutil.copy(ROOT / "docs/operate" / name, context)
    (image / "bin" / "pip").write_text(
        f"""#!/bin/sh
case " $* " in *" --require-hashes "*) exit 0 ;; esac
exec "{sys.executable}" -m pip "$@"
"""
    )
    (image / "bin" / "pip").chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CQ_")} | {
        "PATH": os.pathsep.join([f"{site}/bin", f"{image}/bin", os.environ["PATH"]]),
        "PIP_NO_INDEX": "1",
        "PIP_NO_DEPS": "1",
        "PIP_TARGET": str(site),
        "PYTHONPATH": str(site),
    }
    listed: dict[str, list[str]] = {}
    for instruction, rest in dockerfile_steps():
        if instruction == "COPY":
            copy_context(context, image, rest.split())
        elif instruction in ("ARG", "ENV"):
            environment |= dict(each.split("=", 1) for each in rest.split() if "=" in each)
        elif instruction == "RUN":
            done = run_program("/bin/sh", "-c", rest, cwd=image, env=environment)
            assert done.status == 0, done
        elif instruction in ("CMD", "HEALTHCHECK"):
            listed[instruction] = json.loads(rest[rest.index("[") :])
    environment["CQ_STORE"] = f"embedded:{tmp_path / 'cq.db'}"  # instead of a cluster
    command = [word.replace("0.0.0.0:9100", "127.0.0.1:0") for word in listed["CMD"]]

    worker = processes.launch(*command, cwd=image, env=environment)
    wait_for_line(worker, b'"tasks_shared"')
    health = run_program(*listed["HEALTHCHECK"], cwd=image, env=environment)
    worker.send_signal(signal.SIGTERM)
    wait_for_line(worker, b'"worker_stopped"')
    assert ended(worker).status == 0
    assert (health.out, health.status) == ("healthy\n", 0)
    assert dict(dockerfile_steps())["STOPSIGNAL"] == "SIGTERM"
    assert dict(dockerfile_steps())["USER"].split(":")[0].isdecimal()
