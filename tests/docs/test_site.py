"""The documentation as a site: it builds strictly, needs no other server, and has every public name."""

from __future__ import annotations

import ast
import importlib
import os
import re
import sys
from pathlib import Path
from types import ModuleType

import griffe
import pytest
from markdown_it import MarkdownIt

from tests.kit.processes import run_program

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
API_PAGES = [page for page in PAGES if page.parent.name == "api"]
INTERNAL = ("cq.encoding.sketches", "cq.keys", "cq.store.embedded")
"""Packages with lists of names that only cq itself imports; docs/understand/keys.md describes the keys."""

PYTEST_FIXTURES = {"monkeypatch", "tmp_path_factory"}
"""pytest passes them to the fixtures of `cq.testing`."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the built site. A warning ends the build, also one about a docstring that cannot be parsed."""
    folder = tmp_path_factory.mktemp("site")
    options = ["--strict", "--config-file", str(DOCS / "site/mkdocs.yml"), "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = run_program(sys.executable, "-m", "mkdocs", "build", *options, env=environment)
    assert built.status == 0, built.err
    return folder


@pytest.fixture(scope="module")
def names() -> ModuleType:
    """The program docs/names.py."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(DOCS)
        return importlib.import_module("names")


@pytest.fixture(scope="module")
def shown(names: ModuleType) -> dict[str, griffe.Object]:
    """The objects whose texts are on reference pages, by their own paths."""
    marks = [mark for page in API_PAGES for mark in names.marks(page.read_text())]
    return {each.canonical_path: each for mark in marks for each in names.shown(mark).values()}


def public_names() -> set[str]:
    """The names of `cq`, `cq.links`, `cq.testing`, and of each package that lists its names."""
    modules = {"cq.links", "cq.testing"}
    for top in ("cq", "observers"):
        for file in (ROOT / top).rglob("__init__.py"):
            name = ".".join(file.parent.relative_to(ROOT).parts)
            modules.add(name.replace("observers", "cq.observers") if top == "observers" else name)
    return {
        f"{module}.{name}"
        for module in modules - set(INTERNAL)
        for name in getattr(importlib.import_module(module), "__all__", ())
    }


def names_that_pages_import() -> set[str]:
    """The names of cq that the code on pages and the examples import."""
    programs = [example.read_text() for example in (DOCS / "examples").glob("*.py")]
    for page in [*PAGES, ROOT / "README.md"]:
        programs += re.findall(r"^```python\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    return {
        f"{node.module}.{alias.name}"
        for program in programs
        for node in ast.walk(ast.parse(program))
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "cq"
        for alias in node.names
    }


def test_every_public_name_is_on_a_reference_page(names: ModuleType, shown: dict[str, griffe.Object]) -> None:
    wanted = public_names()

    assert {"cq.configure", "cq.testing.drain", "cq.observers.top.Ranking"} <= wanted
    assert sorted(name for name in wanted if names.named(name).canonical_path not in shown) == []


def test_what_pages_import_is_on_a_reference_page(names: ModuleType, shown: dict[str, griffe.Object]) -> None:
    wanted = names_that_pages_import()

    assert "cq.observers.worker.Worker" in wanted
    assert sorted(name for name in wanted if names.named(name).canonical_path not in shown) == []


def test_each_name_is_on_one_reference_page() -> None:
    names = [
        name
        for page in API_PAGES
        for name in re.findall(r"^<!-- begin: (\S+).* -->$", page.read_text(), flags=re.MULTILINE)
    ]

    assert sorted({name for name in names if names.count(name) > 1}) == []


def text_of(each: griffe.Object | griffe.Alias) -> str:
    return each.docstring.value if each.docstring else ""


def explanations(function: griffe.Object) -> str:
    """The text of a function, of its class, and of the methods of its class that its text names."""
    owner = function.parent
    if not isinstance(owner, griffe.Class):
        return text_of(function)
    named = [name for name in re.findall(r"`(\w+)`", text_of(function)) if name in owner.members]
    return "\n".join([text_of(function), text_of(owner), *(text_of(owner.members[name]) for name in named)])


def test_each_name_on_a_reference_page_has_a_text(shown: dict[str, griffe.Object]) -> None:
    assert len(shown) > 200
    assert sorted(path for path, each in shown.items() if not text_of(each)) == []


def test_each_parameter_is_explained(shown: dict[str, griffe.Object]) -> None:
    """In the text of its function, or in the table of parameters that mean the same everywhere."""
    table = (DOCS / "api/conventions.md").read_text().split("\n## ")[1]
    everywhere = set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.*?) \|", table, flags=re.MULTILINE))))
    functions = [each for each in shown.values() if isinstance(each, griffe.Function)]
    unexplained = {
        function.path: missing
        for function in functions
        if (
            missing := [
                each.name
                for each in function.parameters
                if each.name not in {"self", "cls", *PYTEST_FIXTURES, *everywhere}
                if not re.search(rf"\b{each.name}\b", explanations(function))
            ]
        )
    }

    assert {"db", "tr", "name"} <= everywhere
    assert len(functions) > 100
    assert unexplained == {}


def test_durations_and_sizes_take_the_same_forms(shown: dict[str, griffe.Object]) -> None:
    """A parameter takes a duration as a `Span`, and a size as a number or a text; results have units in their names."""
    durations = (
        "timeout|every|keep|max_age|grace|width|slice|late|gap|last|ttl|wait|duration|half_life|half|pause"
    )
    functions = [each for each in shown.values() if isinstance(each, griffe.Function)]
    functions += [
        each["__init__"]
        for each in shown.values()
        if isinstance(each, griffe.Class) and "__init__" in each.members
    ]
    taken = [
        (f"{function.path}({each.name})", each.name, str(each.annotation))
        for function in functions
        for each in function.parameters
    ]
    as_numbers = [path for path, name, type_ in taken if re.fullmatch(durations, name) and "float" in type_]
    with_units = [path for path, name, _ in taken if "seconds" in name and "__init__" not in path]
    sizes = [path for path, name, type_ in taken if name.endswith("_bytes") and type_ == "int"]

    assert len([each for each in taken if "Span" in each[2]]) > 20
    assert (as_numbers, with_units, sizes) == ([], [], [])


def test_what_a_text_says_about_results_and_errors_is_in_its_sections(
    shown: dict[str, griffe.Object],
) -> None:
    """After a section for arguments, a paragraph about results or errors is in the format of a section, too."""
    wrong = [
        path
        for path, each in shown.items()
        if re.search(r"^Args:$.*^(?:Returns|Raises) .", text_of(each), flags=re.MULTILINE | re.DOTALL)
    ]

    assert wrong == []


def test_each_error_is_named_by_a_function_that_raises_it(shown: dict[str, griffe.Object]) -> None:
    """Or by the page about conventions, or one of the errors that it stands for is."""
    errors = {path: each for path, each in shown.items() if path.startswith("cq.errors.")}
    classes = [each for each in errors.values() if isinstance(each, griffe.Class)]
    others = "\n".join(text_of(each) for path, each in shown.items() if path not in errors)
    others += (DOCS / "api/conventions.md").read_text()
    named = {each.name for each in classes if re.search(rf"\b{each.name}\b", others)}
    bases = {str(base).split(".")[-1] for each in classes if each.name in named for base in each.bases}

    assert len(classes) > 30
    assert {each.name for each in classes} - named - bases == set()


def test_the_site_requests_nothing_from_other_servers(site: Path) -> None:
    """Links that a reader follows are the only addresses of others."""
    pages = list(site.rglob("*.html"))
    requested = re.compile(
        r"<(?:script|link|img|iframe|source)\b[^>]*\b(?:src|href)=[\"']?(?:https?:)?//[^>]*>"
    )

    assert len(pages) > len(PAGES)
    assert {page.name: hit[0] for page in pages if (hit := requested.search(page.read_text()))} == {}
    for style in site.rglob("*.css"):
        assert not re.search(r"(?:url\(|@import\s)[\"']?(?:https?:)?//", style.read_text()), style.name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(DOCS).as_posix())
def test_the_site_shows_a_page_as_code_hosts_do(site: Path, page: Path) -> None:
    """As many lists, tables and blocks of code: the two dialects of Markdown differ in what may follow what."""
    html = (site / page.relative_to(DOCS)).with_suffix(".html").read_text()
    shown = html[html.index("<article") : html.index("</article>")]
    expected = MarkdownIt("commonmark").enable("table").render(page.read_text())

    for tag in ("h1", "h2", "h3", "li", "tr", "pre"):
        pattern = rf"<{tag}[ >]"
        assert len(re.findall(pattern, shown)) == len(re.findall(pattern, expected)), tag


def test_programs_read_the_pages_as_markdown(site: Path) -> None:
    """`llms.txt` leads to each page, and `llms-full.txt` has the text of each."""
    listed, whole = (site / "llms.txt").read_text(), (site / "llms-full.txt").read_text()

    for page in PAGES:
        path = page.relative_to(DOCS)
        assert (site / path).read_text() == page.read_text()
        assert f"]({path.as_posix()})" in listed
        assert page.read_text() in whole
