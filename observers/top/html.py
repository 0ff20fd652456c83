"""A cloud as a self-contained page of HTML: without scripts or other files, for light and dark displays.

The words are a list in the order of the top, so that screen readers begin with the most important one. Each has its
score as text, so the size of a word adds no information. The size of type grows by the same ratio from weight to
weight, and colours keep a contrast of at least 4.5 to 1 on their background.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from html import escape
from typing import Any, Final

from cq.durations import Span, span_of
from cq.encoding.json_values import to_json
from cq.observers.top.cloud import Cloud, CloudEntry
from cq.observers.top.scores import Score

_PAGE: Final = """\
<!doctype html>
<html lang="{language}">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="generator" content="cq">
<title>{title}</title>
<style>
{style}</style>
</head>
<body>
<main>
<h1 id="title">{title}</h1>
{body}
</main>
</body>
</html>
"""
_FRAME: Final = """\
<section class="frame" style="animation-delay: {delay}s">
<p class="about">{about}</p>
{body}
</section>"""

_STYLE: Final = """\
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--page); color: var(--text);
  font: 1rem/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif;
}
main { max-width: 64rem; margin: 0 auto; padding: clamp(1.25rem, 4vw, 3.5rem) clamp(1rem, 4vw, 2.5rem); }
h1 { margin: 0; font-size: 1.5rem; font-weight: 650; line-height: 1.25; overflow-wrap: anywhere; }
.about { margin: .35rem 0 0; color: var(--quiet); font-size: .875rem; font-variant-numeric: tabular-nums; }
.cloud, .empty { margin: 1.75rem 0 0; padding: 1.75rem 0 0; border-top: 1px solid var(--line); }
@media print { body { background: none; } }
"""
# All frames have the same place, and one is visible at a time. Without motion it is the last.
_FRAMES: Final = """\
.frames {{ display: grid; }}
.frame {{ grid-area: 1 / 1; visibility: hidden; animation: frame {seconds}s step-end infinite; }}
@keyframes frame {{ 0% {{ visibility: visible; }} {share:.4f}% {{ visibility: hidden; }} }}
@media print, (prefers-reduced-motion: reduce) {{
  .frame {{ animation: none; }}
  .frame:last-child {{ visibility: visible; }}
}}
"""
_WORDS: Final = """\
:root {
  color-scheme: light dark;
  --page: #fbfaf8; --text: #1f2328; --quiet: #59606a; --line: #d9d6cf;
  --w1: #5b6470; --w2: #4d6076; --w3: #3f5d80; --w4: #2f5a8a; --w5: #1d5694;
  --w6: #3c4ea6; --w7: #5a43ab; --w8: #7a359f; --w9: #96247f;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #15181d; --text: #e8e6e1; --quiet: #a2a9b3; --line: #343a43;
    --w1: #98a1ad; --w2: #9bacc2; --w3: #9cb6d8; --w4: #97bdec; --w5: #8fc2fb;
    --w6: #a9b8ff; --w7: #c1b0ff; --w8: #dba6fb; --w9: #f79ddf;
  }
}
.cloud { display: flex; flex-wrap: wrap; align-items: baseline; gap: .15em 1.1rem; list-style: none; }
.cloud li { max-width: 100%; line-height: 1.2; overflow-wrap: anywhere; white-space: pre-wrap; }
.score { color: var(--quiet); font-size: .75rem; font-weight: 400; font-variant-numeric: tabular-nums; }
@media (forced-colors: active) { .cloud li, .score { color: CanvasText; } }
"""


def to_html(cloud: Cloud, title: str | None = None, language: str = "en") -> str:
    """The whole page; encode it in UTF-8.

    Args:
        cloud: from a `CloudReader`.
        title: the page's heading; by default the queue's name and group.
        language: of the page, as an HTML language tag; the words may be in any language.
    """
    return _page(
        cloud, title, language, f'<p class="about">{cloud_about(cloud)}</p>\n{cloud_list(cloud)}', ""
    )


def to_animation(
    clouds: Sequence[Cloud], title: str | None = None, language: str = "en", *, every: Span = 1.0
) -> str:
    """A whole page that shows versions of a cloud one after the other, again and again; encode it in UTF-8.

    It needs no script. If a reader prefers no motion it shows the last version.

    Args:
        clouds: at least one; each adds its whole list to the page.
        title: the page's heading; by default the queue's name and group.
        language: of the page, as an HTML language tag.
        every: how long each version is shown.
    """
    seconds = span_of(every)
    frames = [
        _FRAME.format(delay=f"{number * seconds:g}", about=cloud_about(cloud), body=cloud_list(cloud))
        for number, cloud in enumerate(clouds)
    ]
    style = _FRAMES.format(seconds=f"{len(clouds) * seconds:g}", share=100 / len(clouds))
    body = "\n".join(['<div class="frames">', *frames, "</div>"])
    return _page(clouds[-1], title, language, body, style)


def _page(cloud: Cloud, title: str | None, language: str, body: str, style: str) -> str:
    heading = title or (cloud.queue if cloud.group is None else f"{cloud.queue}: {cloud.group}")
    return _PAGE.format(
        language=escape(language),
        title=escape(shown(heading)),
        style=cloud_style() + _STYLE + style,
        body=body,
    )


def cloud_style() -> str:
    """The style sheet of the list of a cloud, for pages that contain one.

    A rule for each weight: each is larger than the one before by the same ratio, from 0.95 to 3.4 rem.
    """
    return _WORDS + "".join(
        f".w{weight} {{ font-size: {0.95 * (3.4 / 0.95) ** ((weight - 1) / 8):.3f}rem; "
        f"font-weight: {400 + 35 * (weight - 1)}; color: var(--w{weight}); }}\n"
        for weight in range(1, 10)
    )


def cloud_about(cloud: Cloud) -> str:
    """The number of entries of a cloud, its version and its time, as HTML."""
    number = len(cloud.entries)
    created = cloud.created.replace(microsecond=0)
    return (
        f"{number:,} {'entry' if number == 1 else 'entries'}, highest first, version {cloud.version:,}, "
        f'<time datetime="{created.isoformat()}">{created:%Y-%m-%d %H:%M:%S} UTC</time>'
    )


def cloud_list(cloud: Cloud | None) -> str:
    """The list of the words of a cloud, each with its score, as escaped HTML; None: no cloud has been published.

    For pages that contain a cloud, with `cloud_style()`. The page's element with the id `title` names the list.
    """
    if cloud is None or not cloud.entries:
        return '<p class="empty">Nothing has a score yet.</p>'
    # The role is explicit, because some screen readers do not treat lists without bullets as lists.
    items = "\n".join(map(_item, cloud.entries))
    return f'<ol class="cloud" role="list" aria-labelledby="title">\n{items}\n</ol>'


def _item(entry: CloudEntry) -> str:
    word = f'<span dir="auto">{escape(shown(entry.key))}</span>'
    # The weight is escaped, too, because a caller may have created the entry with any object.
    return (
        f'<li class="w{escape(str(entry.weight))}">{word} '
        f'<span class="score">{escape(number(entry.score))}</span></li>'
    )


def shown(key: Any) -> str:
    """A key as readable text: parts of a tuple separated by dots, bytes in base64, control characters visible."""
    parts = key if isinstance(key, tuple) else (key,)
    text = " · ".join(part if isinstance(part, str) else str(to_json(part)) for part in parts)
    return "".join(letter if letter.isprintable() else f"\\u{ord(letter):04x}" for letter in text) or '""'


def number(score: Score) -> str:
    """A score as readable text: ints with digits in groups of three, other numbers with six significant digits."""
    if isinstance(score, int) and abs(score) < 10**18:
        return f"{score:,}"
    # An int may be too large for a float.
    return f"{score if isinstance(score, float) else Decimal(score):.6g}"
