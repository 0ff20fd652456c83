"""The rules of the house: what may import what, and what no module does."""

from __future__ import annotations

import ast
import inspect
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import cq

ROOT = Path(__file__).parents[1]
LINES_MAX = 600
LONG: dict[str, int] = {
    # module: lines. A ratchet: numbers only go down, and new modules stay within LINES_MAX.
}


FLOORS = """
cq/errors.py cq/distribution.py cq/runtime.py cq/backoff.py cq/plain_text.py cq/arguments.py cq/type_variables.py
cq/failure.py cq/late.py
cq/encoding/sketches
cq/encoding
cq/combiners.py cq/observer.py cq/durations.py
cq/deciders.py
cq/sketches
cq/keys
cq/outbox.py
cq/store
cq/store/embedded/keys.py cq/store/embedded/atomic.py cq/store/embedded/error.py cq/store/embedded/future.py
cq/store/embedded/file.py cq/store/embedded/lock_file.py
cq/store/embedded/writes.py
cq/store/embedded/conflict_log.py cq/store/embedded/snapshots.py cq/store/embedded/watches.py
cq/store/embedded/wal.py cq/store/embedded/committer.py cq/store/embedded/engine.py
cq/store/embedded/state.py cq/store/embedded/reading.py cq/store/embedded/transaction.py
cq/store/embedded
cq/store/__init__.py
cq/config
cq/queue
cq/windows
cq/intake
cq/expiry
cq/admin
cq/feeds
cq/app.py
cq/passes
cq/bucket
cq/verify
cq/layers
cq/cells
cq/__init__.py
observers/telemetry
observers/scheduling
observers/top
observers/links/log.py observers/links/target.py
observers/links/sql/dialects
observers/links
observers/links/sql
observers/links/targets
observers/links/outbox
observers/feeds
observers/receiver.py
observers/distinct.py observers/sessions.py observers/thresholds.py observers/window_totals.py
observers/links/registry.py
observers/builtin.py
observers/visits.py
observers/monitoring
observers/tasks
observers/worker
observers/verify
cq/tables
cq/links.py
cq/aio
cq/draining.py cq/linktesting.py cq/testing.py
cli/shared
cli/bench/systems
cli/bench/measures
cli/bench
cli/demos/command.py cli/demos/harness.py
cli/operate
cli/demos
cli/queues
cli/web
cli/demos/live.py
cli cq/__main__.py
"""
"""The rooms from the ground up: a module imports its own room and those above its line, and none below it.

A line names folders or modules; a module belongs to the longest name that fits. Imports for type checkers count, too.
"""
MODULES_MAX = 20
PARAMETERS_MAX = 6
PUBLIC_NAMES = {*cq.__all__, "Ranking", "Worker", "top"}
"""What applications call: it may have many keyword-only parameters, because its settings are independent."""
PUBLIC = ("cq/__init__.py", "cq/testing.py")
"""For applications. Of cq itself, only programs that show how to use it import the first, and only tests the second."""


def modules(*folders: str) -> list[Path]:
    """The modules below these folders of the tree, each under its own path and none through a link."""
    return [file for folder in folders for file in _files(ROOT / folder) if file.suffix == ".py"]


def _files(folder: Path) -> Iterator[Path]:
    for entry in sorted(folder.iterdir()):
        if entry.is_symlink() or entry.name == "__pycache__":
            continue
        if entry.is_dir():
            yield from _files(entry)
        else:
            yield entry


def name(file: Path) -> str:
    """Its path from the root of the tree, as messages show it."""
    return file.relative_to(ROOT).as_posix()


@cache
def tree(module: Path) -> ast.Module:
    """What a module contains, parsed once."""
    return ast.parse(module.read_text())


@cache
def imports(module: Path) -> set[str]:
    """Every module and every name from a module that it imports, in functions too, relative ones resolved."""
    package = ["cq", *module.relative_to(ROOT).parent.parts]
    if package[:2] == ["cq", "cq"]:
        del package[0]
    found = set()
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*base, *([node.module] if node.module else [])])
            found |= {source} | {f"{source}.{alias.name}" for alias in node.names}
    return found


def calls(module: Path) -> set[str]:
    """The plain names that it calls."""
    nodes = ast.walk(tree(module))
    return {node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}


def within(imported: set[str], package: str) -> set[str]:
    return {module for module in imported if module == package or module.startswith(package + ".")}


def floor_of(module: str) -> int:
    """The line of `FLOORS` that a module belongs to."""
    places = {path: floor for floor, line in enumerate(FLOORS.split("\n")) for path in line.split()}
    fitting = [path for path in places if module == path or module.startswith(path + "/")]
    return places[max(fitting, key=len)]


def file_of(imported: str) -> str | None:
    """The path of an imported module; None for a name in a module, and for modules of others."""
    path = imported.replace(".", "/").replace("cq/observers", "observers").replace("cq/cli", "cli")
    return next((each for each in (f"{path}.py", f"{path}/__init__.py") if (ROOT / each).is_file()), None)


def imported_files(module: Path) -> set[str]:
    """The modules of cq that a module imports: all modules of the project import each other by absolute names."""
    found: set[str | None] = set()
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Import):
            found |= {file_of(alias.name) for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{name(module)} has a relative import"
            found |= {
                file_of(f"{node.module}.{alias.name}") or file_of(node.module or "") for alias in node.names
            }
    return {file for file in found if file}


def test_imports_go_one_way() -> None:
    wrong = {
        name(module): found
        for module in modules("cq", "observers", "cli")
        if (found := {file for file in imported_files(module) if floor_of(file) > floor_of(name(module))})
    }

    assert wrong == {}


@pytest.mark.parametrize(
    ("folder", "forbidden"),
    [
        ("cq", ["observers", "cli", "typer", "rich", "cq.testing", "pytest"]),
        ("observers", ["observers", "cli", "typer", "rich", "cq.testing", "pytest"]),
        ("cli", ["observers", "cli", "cq.testing", "pytest"]),
        ("cq/store/embedded", ["fdb", "cq.store.foundationdb"]),
    ],
)
def test_some_modules_are_not_imported(folder: str, forbidden: list[str]) -> None:
    """Neither the top folders by their own names, which would make a second copy, nor what only other rooms need."""
    wrong = {
        name(module): found
        for module in modules(folder)
        if name(module) not in PUBLIC
        and (found := {hit for package in forbidden for hit in within(imports(module), package)})
    }

    assert wrong == {}


def parameters(module: Path) -> dict[str, int]:
    """{name: number of parameters} of each function and method, without self; commands of typer are left out.

    Keyword-only parameters of what `PUBLIC_NAMES` has are not counted: applications choose among many independent
    settings by name there.
    """
    found = {}
    commands = {
        node.name
        for node in ast.walk(tree(module))
        if isinstance(node, ast.FunctionDef)
        if any(ast.unparse(each).startswith("commands.command(") for each in node.decorator_list)
    }
    methods = {
        id(item): each
        for each in ast.walk(tree(module))
        if isinstance(each, ast.ClassDef)
        for item in each.body
    }
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            owner = methods.get(id(node))
            name = f"{owner.name}.{node.name}" if owner else node.name
            names = [each.arg for each in node.args.posonlyargs + node.args.args]
            if owner and names[:1] in (["self"], ["cls"]):
                del names[0]
            if (owner.name if owner else node.name) not in PUBLIC_NAMES:
                names += [each.arg for each in node.args.kwonlyargs]
            names += [each.arg for each in (node.args.vararg, node.args.kwarg) if each]
            if node.name not in commands:
                found[name] = len(names)
    return found


def test_functions_have_few_parameters() -> None:
    wrong = {
        f"{name(module)}: {function}": count
        for module in modules("cq", "observers", "cli")
        for function, count in parameters(module).items()
        if count > PARAMETERS_MAX
    }

    assert wrong == {}


def test_folders_are_small() -> None:
    folders = [file.parent for file in modules("cq", "observers", "cli") if file.name != "__init__.py"]
    sizes = Counter(name(folder) for folder in folders)

    assert {folder: n for folder, n in sizes.items() if n > MODULES_MAX} == {}


def test_no_two_classes_share_a_name() -> None:
    """A leading underscore makes no other name. cq/store/api.py describes classes of the binding by their own names."""
    found: dict[str, list[str]] = {}
    for module in modules("cq", "observers", "cli"):
        if name(module) != "cq/store/api.py":
            classes = [node for node in tree(module).body if isinstance(node, ast.ClassDef)]
            for each in classes:
                found.setdefault(each.name.lstrip("_"), []).append(name(module))

    assert {each: files for each, files in found.items() if len(files) > 1} == {}


def test_no_package_exports_a_name_of_one_of_its_modules() -> None:
    """Else `from package import name` is the function or the module, depending on what was imported before."""
    wrong = {}
    for file in modules("cq", "observers", "cli"):
        if file.name == "__init__.py":
            names = {
                alias.asname or alias.name
                for node in ast.walk(tree(file))
                if isinstance(node, ast.ImportFrom)
                if node.module != "cq" or file.parent.name != "cq"  # these are modules
                for alias in node.names
            }
            inside = {each.stem for each in file.parent.iterdir()}
            wrong[name(file)] = names & inside
    assert {file: found for file, found in wrong.items() if found} == {}


def test_every_room_has_a_floor() -> None:
    rooms = {name(file.parent) for file in modules("cq", "observers", "cli")} - {"cq", "observers"}

    assert {room for room in rooms if room not in FLOORS.split()} == set()


def test_the_binding_is_imported_when_a_cluster_is_opened_and_nowhere_else() -> None:
    """Without it, all of cq works on the embedded store; the network thread is started late."""
    users = {name(module) for module in modules("cq", "observers", "cli") if within(imports(module), "fdb")}

    assert users == {"cq/store/foundationdb.py"}


def test_nothing_that_is_stored_can_run_code() -> None:
    loaders = ["pickle", "marshal", "shelve", "dill", "cloudpickle"]
    users = {
        name(module): found
        for module in modules("cq", "observers", "cli")
        if (found := {hit for loader in loaders for hit in within(imports(module), loader)})
    }

    assert users == {}


def test_only_the_command_line_prints() -> None:
    assert [name(module) for module in modules("cq", "observers") if "print" in calls(module)] == []


def test_commands_print_by_the_functions_that_escape() -> None:
    """Those of cli/shared/output.py: `say`, `note`, `print_words`, `print_json`, `print_table` and the like."""
    printing = re.compile(r"typer\.s?echo|click\.|(?<!\.)\bprint\(|sys\.std(out|err)\.write|\bConsole\(")
    wrong = {
        name(module): hit[0]
        for module in modules("cli")
        if name(module) != "cli/shared/output.py" and (hit := printing.search(module.read_text()))
    }

    assert wrong == {}


def test_modules_are_short() -> None:
    sizes = {
        name(module): len(module.read_text().splitlines()) for module in modules("cq", "observers", "cli")
    }
    limits: dict[str, int] = LONG

    assert {module: n for module, n in sizes.items() if n > limits.get(module, LINES_MAX)} == {}
    assert {module for module in limits if sizes.get(module, 0) <= LINES_MAX} == set(), (
        "take these out of LONG"
    )


def test_every_module_says_what_it_is() -> None:
    texts = {name(module): module.read_text() for module in modules("cq", "observers", "cli", "tests")}
    silent = [file for file, text in texts.items() if text.strip() and not re.match(r'(#.*\n)?r?"""', text)]

    assert silent == []


def test_every_public_name_is_listed_and_nothing_else() -> None:
    public = {name for name, value in vars(cq).items() if name[0] != "_" and not inspect.ismodule(value)}

    assert set(cq.__all__) == public


def test_no_path_of_one_machine_is_written_down() -> None:
    machine = re.compile(r"/(home|root|Users|work)/\w")
    folders = (".ci", "cq", "observers", "cli", "tests", "docs")
    top = [file for pattern in ("*.md", "*.toml", "*.py", "*.example") for file in ROOT.glob(pattern)]
    below = [file for folder in folders for file in _files(ROOT / folder)]
    wrong = {
        name(file): hit[0]
        for file in top + below
        if (hit := machine.search(file.read_text(errors="replace")))
    }

    assert wrong == {}
