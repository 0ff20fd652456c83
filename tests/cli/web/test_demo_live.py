"""`cq demo live`, as a viewer sees it: counts that are equal to a recount whenever the page changes.

With $CQ_TEST_SCREENSHOTS, a folder, the moving picture of docs/screenshots is made there.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections import Counter
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import pytest
from PIL import Image
from playwright.sync_api import Browser, Page, expect

import cq
from cq.cli.demos import live
from cq.cli.demos.harness import DemoDiffers
from tests.cli.conftest import Cli
from tests.cli.web.browsers import NEEDS_CHROMIUM
from tests.cli.web.dashboards import SECONDS
from tests.kit.processes import ended

FRAMES: Final = 48
FRAME_MILLISECONDS: Final = 500
WIDE: Final = 1000
HIGH: Final = 400
"""Of the table of counts."""
FOLDER: Final = os.environ.get("CQ_TEST_SCREENSHOTS")


def counts(text: str) -> dict[str, int]:
    """The numbers of the table with this text."""
    return {name: int(number.replace(",", "")) for name, number in re.findall(r"\t(.+?)\t([\d,]+)", text)}


def frame(workers: Page, compared: Page) -> Image.Image:
    """Both pages as one picture: the workers, and below them the counts."""
    above = Image.open(BytesIO(workers.screenshot(clip={"x": 0, "y": 0, "width": WIDE, "height": 560})))
    # Not a picture of the element: the page replaces it with each change.
    place = compared.evaluate("document.querySelector('#part-top table').getBoundingClientRect().toJSON()")
    clip = {"x": place["x"], "y": place["y"], "width": place["width"], "height": HIGH}
    below = Image.open(BytesIO(compared.screenshot(clip=clip)))  # type: ignore[arg-type]
    whole = Image.new("RGB", (WIDE, above.height + below.height + 24), "white")
    whole.paste(above, (0, 0))
    whole.paste(below, ((WIDE - below.width) // 2, above.height + 12))
    return whole.quantize(32, dither=Image.Dither.NONE)


def save(frames: list[Image.Image]) -> None:
    """The moving picture of these frames."""
    file = Path(str(FOLDER)) / "live.gif"
    first, *others = frames
    first.save(file, save_all=True, append_images=others, duration=FRAME_MILLISECONDS, loop=0, optimize=True)


@NEEDS_CHROMIUM
def test_a_viewer_sees_counts_that_are_equal_to_the_recount_while_processes_are_killed(
    cli: Cli, browser: Browser
) -> None:
    opener = cli.folder / "browser"
    opener.write_text('#!/bin/sh\necho "$1" > "$0.address"\n')
    opener.chmod(0o700)
    cli.environment |= {"BROWSER": f"{opener} %s", "DISPLAY": ":0"}
    command = "demo live --kill-every 2"
    command += "" if FOLDER else " --adders 1 --workers 1"  # starts faster
    demo = cli.start(*command.split(), stderr=subprocess.PIPE)
    assert demo.stderr is not None
    address = demo.stderr.readline().decode().removeprefix("open ").strip()
    context = browser.new_context(viewport={"width": WIDE, "height": 800})
    page = context.new_page()
    page.set_default_timeout(SECONDS * 1000)
    page.goto(address)
    expect(page.locator("#part-top tr", has_text="restarts").first).to_be_visible()
    seen: list[dict[str, int]] = []
    while len(seen) < 2:
        text = page.locator("#part-top table").inner_text()
        seen.append(counts(text))
        page.wait_for_function("old => document.querySelector('#part-top table').innerText !== old", arg=text)
    assert (cli.folder / "browser.address").read_text() == f"{address}\n"
    for found in seen:
        assert [found[f"{fruit}, value of cq"] for fruit in live.FRUITS] == [
            found[f"{fruit}, recount"] for fruit in live.FRUITS
        ]
    if FOLDER:
        workers = context.new_page()
        workers.goto(address.partition("/queues/")[0] + "/workers")
        frames = []
        for _ in range(FRAMES):
            workers.wait_for_timeout(FRAME_MILLISECONDS)
            frames.append(frame(workers, page))
        save(frames)
    context.close()
    demo.send_signal(signal.SIGINT)
    outcome = ended(demo)
    assert outcome.status == 0, outcome
    assert "all equal" in outcome.err
    assert outcome.out.split()[:5] == ["fruit", "value", "of", "cq", "recount"]


def test_a_basket_that_is_not_counted_is_a_difference(tmp_path: Path) -> None:
    url = f"embedded:{tmp_path / 'demo.db'}"
    db: Any = cq.open(url)
    cq.configure(db, live.QUEUE, key=str, value=int, combiner="sum")
    cq.configure(db, live.COMPARED, key=str, value=int, combiner="last")
    comparison = live.Comparison(db, Counter())
    cq.transact(db, partial(live.put_basket, basket={"apples": 3}))
    assert comparison.look() == "1 basket, 1 comparison: all equal"

    cq.transact(db, lambda tr: tr.set(live.BASKETS + b"\xff", b'{"apples": 1}'))

    with pytest.raises(DemoDiffers, match="'apples': 3 instead of 4"):
        comparison.compare()
