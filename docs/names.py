"""Writer of the Python reference: the texts of public names, from their docstrings, in the pages of docs/api.

A page names what it shows by marks, `<!-- begin: cq.configure -->`; `reference.py` puts the texts between them. So the
reference can be read on a code host, in a checkout and on the site, and needs no program to be read.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import griffe

ROOT = Path(__file__).parents[1]
MARKED = re.compile(
    r"^<!-- begin: (?P<name>\S+)(?: (?P<kind>with|without) (?P<members>[\w, ]+))? -->\n.*?^<!-- end: (?P=name) -->$",
    re.MULTILINE | re.DOTALL,
)
LINE = 100


@cache
def package() -> griffe.Object:
    """Return what the source of cq says, without importing it."""
    loader = griffe.GriffeLoader(
        search_paths=[ROOT], docstring_parser="google", docstring_options={"returns_multiple_items": False}
    )
    found = loader.load("cq", submodules=True)
    loader.resolve_aliases()
    return found  # type: ignore[return-value]


def named(path: str) -> griffe.Object:
    """Return the object of a public name, such as `cq.configure`."""
    found = package()[path.removeprefix("cq.")]
    return found.final_target if found.is_alias else found


def marks(content: str) -> list[re.Match[str]]:
    """Return the marks of a page."""
    return list(MARKED.finditer(content))


def shown(mark: re.Match[str]) -> dict[str, griffe.Object]:
    """Return what a mark shows: the object of its name, and the members, by their names from `cq` on."""
    path = mark["name"]
    return {path: named(path)} | {f"{path}.{name}": each for name, each in members(mark).items()}


def with_names(content: str) -> str:
    """Return a page with the present texts of the names that it marks."""
    return MARKED.sub(described, content)


def described(mark: re.Match[str]) -> str:
    """Return a mark, with the text of its name and of the members that it asks for."""
    path, each = mark["name"], named(mark["name"])
    parts = [entry(f"### {path}", path, each)]
    parts += [entry(f"#### {each.name}.{name}", name, member) for name, member in members(mark).items()]
    return "\n\n".join([mark[0].splitlines()[0], *parts, f"<!-- end: {path} -->"])


def members(mark: re.Match[str]) -> dict[str, griffe.Object]:
    """Return the members of a name that its mark asks for: without a list, the public ones with a text."""
    each = named(mark["name"])
    if mark["kind"] == "without" or not each.is_class:
        return {}
    if mark["kind"] == "with":
        return {name: target(each.all_members[name]) for name in mark["members"].split(", ")}
    own = {name: target(member) for name, member in each.members.items() if not name.startswith("_")}
    return {name: member for name, member in own.items() if member.docstring}


def target(member: griffe.Object | griffe.Alias) -> griffe.Object:
    """Return the object of a name of another module, too."""
    return member.final_target if isinstance(member, griffe.Alias) else member


def entry(heading: str, name: str, each: griffe.Object) -> str:
    """Return a heading, a signature, and the sections of a docstring."""
    sections = each.docstring.parsed if each.docstring else []
    constructor = each.members.get("__init__") if each.is_class else None
    if constructor and constructor.docstring:
        sections = [*sections, *constructor.docstring.parsed]
    return "\n\n".join([heading, *signature(name, each), *(section(part) for part in sections)])


def signature(name: str, each: griffe.Object) -> list[str]:
    """Return the block of code that shows how a name is called, or its type."""
    if isinstance(each, griffe.Function):
        parameters, result = each.parameters, each.returns
    elif isinstance(each, griffe.Class):
        parameters, result = each.parameters, None
    elif isinstance(each, griffe.Attribute) and each.annotation:
        return [f"```py\n{name}: {each.annotation}\n```"]
    else:
        return []
    given = arguments(list(parameters))
    ending = f" -> {result}" if result else ""
    prefix = "class " if each.is_class else "async " if "async" in each.labels else ""
    line = f"{prefix}{name}({', '.join(given)}){ending}"
    if len(line) > LINE:
        line = f"{prefix}{name}(\n" + "".join(f"    {one},\n" for one in given) + f"){ending}"
    return [f"```py\n{line}\n```"]


def arguments(parameters: list[griffe.Parameter]) -> list[str]:
    """Return the parameters of a call as its definition has them, without `self`."""
    shown, keywords = [], False
    for each in parameters:
        kind = each.kind
        if each.name in {"self", "cls"}:
            continue
        if kind is griffe.ParameterKind.keyword_only and not keywords:
            shown.append("*")
        keywords |= kind in {griffe.ParameterKind.keyword_only, griffe.ParameterKind.var_positional}
        stars = {griffe.ParameterKind.var_positional: "*", griffe.ParameterKind.var_keyword: "**"}.get(
            kind, ""
        )
        annotation = f": {each.annotation}" if each.annotation else ""
        default = f" = {each.default}" if each.default is not None and not stars else ""
        shown.append(f"{stars}{each.name}{annotation}{default}")
    return shown


def section(part: griffe.DocstringSection) -> str:
    """Return a section of a docstring in Markdown."""
    if isinstance(part, griffe.DocstringSectionText):
        return part.value
    title = {"parameters": "Arguments", "attributes": "Attributes", "returns": "Returns", "raises": "Raises"}
    lines = []
    for each in part.value:
        raised = part.kind is griffe.DocstringSectionKind.raises
        names = str(each.annotation).strip("()").split(", ") if raised else [each.name]
        text = each.description.strip().replace("\n", "\n  ")
        lines.append(
            "- " + ": ".join([", ".join(f"`{name}`" for name in names), text] if names[0] else [text])
        )
    return "\n".join([f"**{title[part.kind.value]}**", "", *lines])
