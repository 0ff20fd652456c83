"""Counting words: as a plain Counter over the whole text does, however the text is cut into pieces."""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cq.cli.demos import words
from cq.cli.demos.words import count_words, files_below

# Letters whose lower case depends on their neighbours (a final sigma) or is longer, what lower-casing looks
# across (apostrophes, dots, accents, soft hyphens), and what it does not.
SIGMAS, LONGER, ACROSS = "\u03a3\u03c3\u03c2", "\u0130\u0131\u00df", "'\u2019.:\u00b7\u0301\u00ad"
TEXTS = st.text(f"aB{SIGMAS}{LONGER}{ACROSS} 1_-,\n\r\t", max_size=60) | st.text(max_size=60)


def plainly(text: str) -> Counter[str]:
    return Counter(re.findall(r"[^\W\d_]+", text.lower()))


@given(TEXTS, st.integers(1, 9))
def test_pieces_change_nothing(tmp_path_factory: pytest.TempPathFactory, text: str, chunk: int) -> None:
    """Lower-casing a final sigma looks at its neighbours; no cut may come between them."""
    file = tmp_path_factory.getbasetemp() / "text"
    file.write_bytes(text.encode("utf-8", "replace"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(words, "_CHUNK", chunk)

        assert count_words(str(file)) == plainly(file.read_bytes().decode())


def test_a_text_without_spaces_is_read_once(tmp_path: Path) -> None:
    """Joining the pieces anew for each of them took time by the square of the length."""
    file = tmp_path / "text"
    file.write_bytes(b"ab" * 10_000_000)

    assert count_words(str(file)) == {"ab" * 10_000_000: 1}


def test_files_are_found_once_and_in_order(tmp_path: Path) -> None:
    (tmp_path / "b" / "deep").mkdir(parents=True)
    (tmp_path / "a").mkdir()
    for name in ("b/2", "b/1", "b/deep/3", "a/4", "5"):
        (tmp_path / name).write_text("")
    (tmp_path / "a" / "round").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "a" / "pipe")

    found = list(files_below([str(tmp_path / "5"), str(tmp_path), str(tmp_path / "b")]))

    assert found == [str(tmp_path / name) for name in ("5", "a/4", "b/1", "b/2", "b/deep/3")]


def test_a_path_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        list(files_below([str(tmp_path / "nothing")]))


def test_a_folder_that_cannot_be_read_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "locked").mkdir()
    (tmp_path / "open").write_text("")
    scan = os.scandir

    def refuse(path: Any) -> Any:
        if str(path).endswith("locked"):
            raise PermissionError(13, "Permission denied", path)
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)
    told: list[OSError] = []

    assert list(files_below([str(tmp_path)], told.append)) == [str(tmp_path / "open")]
    assert [error.filename for error in told] == [str(tmp_path / "locked")]
