"""Pages as HTML: their templates, which escape all texts, and the parts that open pages replace."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from cq.cli.web.pages import LOOKUP, NAVIGATION, WebPage, page_of_remark
from cq.cli.web.sampler import StoreSnapshot
from cq.cli.web.text import FILTERS
from cq.distribution import version
from cq.observers.top.cloud import Cloud
from cq.observers.top.html import cloud_about, cloud_list, number

T = TypeVar("T")


def environment() -> Environment:
    """The templates of the dashboard."""
    made = Environment(
        loader=PackageLoader("cq.cli.web"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(FILTERS)
    made.filters |= {"cloud_about": _about, "cloud_list": _list, "score": number, "page_of": page_of_remark}
    made.globals["navigation"] = NAVIGATION
    made.globals["version"] = version()
    return made


def _about(cloud: Cloud) -> Markup:
    return Markup(cloud_about(cloud))  # noqa: S704 - HTML of the page of `cq cloud`


def _list(cloud: Cloud) -> Markup:
    return Markup(cloud_list(cloud))  # noqa: S704 - HTML of the page of `cq cloud`, which escapes keys


@dataclass(slots=True)
class Renderer:
    """Renders pages; the parts of a page are rendered once for each snapshot, whatever the number of open pages.

    It is for use by one thread at a time. `in_thread` runs a call in a thread of its own, so that a large page does not
    keep the event loop from other requests.

    Args:
        templates: from `environment`.
        operates: whether pages offer actions.
    """

    templates: Environment
    operates: bool
    _number: int = -1
    _parts: dict[str, dict[str, str]] = field(default_factory=dict)
    _thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "cq-web-renderer"))

    async def in_thread(self, render: Callable[[], T]) -> T:
        """Call a function in the thread of the renderer."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, render)

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown()

    def page(self, page: WebPage, snapshot: StoreSnapshot, **more: Any) -> str:
        """A whole page."""
        template = self.templates.get_template("page.html")
        return template.render(page=page, operates=self.operates, live=self._live(page, snapshot), **more)

    def render(self, template: str, **variables: Any) -> str:
        """Another template, such as that of a form."""
        return self.templates.get_template(template).render(**variables)

    def changes(self, page: WebPage, snapshot: StoreSnapshot, sent: dict[str, str]) -> str | None:
        """The parts that differ from `sent`, as JSON `{id: HTML}`, and updates `sent`; None if there are none."""
        parts = self._live(page, snapshot)
        changed = {name: html for name, html in parts.items() if sent.get(name) != html}
        sent.update(changed)
        return json.dumps({f"part-{name}": html for name, html in changed.items()}) if changed else None

    def _live(self, page: WebPage, snapshot: StoreSnapshot) -> Mapping[str, str]:
        if snapshot.number != self._number:
            self._number, self._parts = snapshot.number, {}
        found = self._parts.get(page.path)
        if found is None:
            view = page.variables(snapshot) | {"operates": self.operates}
            found = {part: self._part(part, view) for part in ("verdict", *page.parts) if part != LOOKUP}
            self._parts[page.path] = found
        return found

    def _part(self, name: str, view: Mapping[str, Any]) -> str:
        return self.templates.get_template(f"parts/{name}.html").render(view)
