"""Links from pages to files outside docs/, which the site has, too, and the pages as Markdown for programs that read.

Each page lies beside its HTML as Markdown; `llms.txt` lists the pages as https://llmstxt.org proposes, and
`llms-full.txt` is all of them in the order of the navigation.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

DOCS = Path(__file__).parents[1]
ROOT = DOCS.parent
PROJECT_PAGES = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
LINK = re.compile(r"\]\((?!https?:)([^)#\s]+)")


def on_files(files: Any, config: Any) -> Any:
    """Add the project's pages, and every file outside docs/ that a page links to."""
    pages = [*sorted(DOCS.rglob("*.md")), *(ROOT / name for name in PROJECT_PAGES)]
    linked = {target for page in pages for target in targets(page)}
    for path in sorted({*pages, *linked}):
        if not path.is_relative_to(DOCS):
            file = File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path))
            files.append(file)
    return files


def on_post_build(config: Any) -> None:
    """Write the pages as Markdown, and the two files that lead programs to them."""
    site, listed, whole = Path(config.site_dir), [f"# {config.site_name}\n\n> {config.site_description}"], []
    for section, name, path in listing(config.nav):
        source = DOCS / path if (DOCS / path).exists() else ROOT / path
        markdown = source.read_text()
        (site / path).write_text(markdown)
        if f"\n## {section}\n" not in listed:
            listed.append(f"\n## {section}\n")
        listed.append(f"- [{name}]({path})")
        whole.append(f"<!-- {path} -->\n\n{markdown}")
    (site / "llms.txt").write_text("\n".join(listed) + "\n")
    (site / "llms-full.txt").write_text("\n".join(whole))


def listing(nav: list[dict[str, Any]]) -> Iterator[tuple[str, str, str]]:
    """Yield the section, the title and the path of each page of the navigation."""
    for section in nav:
        for title, pages in section.items():
            for entry in [{title: pages}] if isinstance(pages, str) else pages:
                for name, path in entry.items():
                    yield title, name, path


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Return the page with links to the places of their targets in the site."""
    source = Path(page.file.abs_src_path)
    here = os.path.dirname(page.file.src_uri)

    def moved(link: re.Match[str]) -> str:
        target = resolved(source, link[1])
        return f"]({os.path.relpath(place(target), here or '.')}" if target.is_file() else link[0]

    return LINK.sub(moved, markdown)


def targets(page: Path) -> set[Path]:
    """Return the files that a page links to."""
    return {target for link in LINK.findall(page.read_text()) if (target := resolved(page, link)).is_file()}


def resolved(page: Path, link: str) -> Path:
    """Return the file that a link of a page leads to."""
    return Path(os.path.normpath(page.parent / link))


def place(target: Path) -> str:
    """Return the path of a file in the site."""
    return target.relative_to(DOCS if target.is_relative_to(DOCS) else ROOT).as_posix()
