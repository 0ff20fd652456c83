"""What a start imports: each further module costs time, in every command and every process of an application.

Nothing here measures time, which depends on the machine.
"""

from __future__ import annotations

import json
import sys

import pytest

from tests.kit.processes import run_code

ROOMS = "admin config deciders encoding intake keys outbox queue sketches store windows"
"""The packages of cq, and public modules, that `import cq` imports, some of them in part."""
SLOW = {"asyncio", "email", "importlib.metadata", "multiprocessing", "ssl", "statistics", "zipfile"}
"""Modules of Python that take long to import, and that few applications need."""


def imported(program: str) -> set[str]:
    """The modules that a program imports after Python's own start."""
    script = (
        f"import sys; before = set(sys.modules)\n{program}\n"
        "import json; print(json.dumps([*sys.modules.keys() - before]))"
    )
    done = run_code(script)
    assert done.status == 0, done
    return set(json.loads(done.out.splitlines()[-1]))


def of_others(modules: set[str]) -> set[str]:
    """The top packages that neither Python nor cq has."""
    return {name.partition(".")[0].lstrip("_") for name in modules} - {
        each.lstrip("_") for each in (*sys.stdlib_module_names, "cq")
    }


def test_an_application_imports_what_adds_and_reads_need() -> None:
    found = imported("import cq")

    below = {name.split(".")[1] for name in found if name.count(".") == 2 and name.startswith("cq.")}
    rooms = {name.split(".")[1] for name in found if name.startswith("cq.")}
    assert of_others(found) - {"typing_extensions"} == {"cbor2"}  # it comes before Python 3.13
    assert below <= set(ROOMS.split()) <= rooms
    assert (
        found & {"cq.admin.configure", "cq.cells", "cq.cli", "cq.feeds", "cq.intake.logs", "cq.observers"}
        == set()
    )
    assert found & SLOW == set()


def test_the_help_imports_no_command() -> None:
    help_shown = "import contextlib; from cq.cli.main import main; sys.argv = ['cq', '--help']\n"
    found = imported(f"{help_shown}with contextlib.suppress(SystemExit): main()")

    commands = {name for name in found if name.startswith("cq.cli.") and not name.startswith("cq.cli.shared")}
    assert commands == {"cq.cli.main"}
    assert {"typer", "rich"} <= of_others(found)
    assert of_others(found) & {"apsw", "fdb", "jinja2", "pyarrow", "sqlalchemy", "starlette"} == set()
    assert found & SLOW - {"multiprocessing"} == set()


@pytest.mark.parametrize("command", ["add", "status", "worker"])
def test_a_command_imports_neither_sqlalchemy_nor_another_program(command: str) -> None:
    found = imported(
        "from cq.cli.shared.late_commands import LateCommands\n"
        f"LateCommands(lambda name, command: None)[{command!r}]"
    )

    assert any(name.startswith(("cq.cli.queues.", "cq.cli.operate.")) for name in found)
    assert of_others(found) & {"jinja2", "pyarrow", "sqlalchemy", "starlette"} == set()
    assert not {name for name in found if name.startswith(("cq.cli.bench", "cq.cli.demos", "cq.cli.web"))}


def test_the_tools_for_tests_do_without_pytest() -> None:
    done = run_code("import sys; sys.modules['pytest'] = None\nfrom cq.testing import drain")

    assert done.status == 0, done
