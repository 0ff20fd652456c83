"""Counting the words of text files: the sums of a queue over documents, one for each file.

The ancestor's word count: words are the runs of letters in the lower-cased text. Running it again after files
have changed or vanished adjusts the sums.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Final, TextIO

WORD: Final = re.compile(r"[^\W\d_]+")
_CHUNK: Final = 1 << 20
_ENDS: Final = ' \n\t0123456789,;()[]{}<>=+-*/\\|&%$#@!?~"'
"""Before these a text can be cut: they are no letters, and lower-casing looks at no neighbour across them."""


def files_below(
    paths: Iterable[str], unreadable: Callable[[OSError], object] = lambda error: None
) -> Iterator[str]:
    """The absolute paths of all files that the paths are or have below them, each once, in a stable order.

    Links to folders are not followed; folders that cannot be read are told to `unreadable`. Raises `OSError` for a
    path that does not exist.
    """
    seen: set[str] = set()
    for path in map(os.path.abspath, paths):
        if os.path.isdir(path):
            found = _walk(path, unreadable)
        else:
            os.stat(path)  # raises when there is nothing
            found = iter([path])
        for file in found:
            if file not in seen:
                seen.add(file)
                yield file


def count_words(path: str) -> Counter[str]:
    """How often each word occurs in a file; raises `UnicodeDecodeError` unless it is UTF-8, and `OSError`.

    Reads the file in pieces, so that memory grows with the number of different words, not with the file.
    """
    counts: Counter[str] = Counter()
    with open(path, encoding="utf-8") as stream:
        for text in _pieces(stream):
            counts.update(WORD.findall(text.lower()))
    return counts


def _pieces(stream: TextIO) -> Iterator[str]:
    """The text in pieces that begin where no word and no lower-casing is cut apart."""
    held: list[str] = []
    while chunk := stream.read(_CHUNK):
        end = max(map(chunk.rfind, _ENDS))
        if end >= 0:
            yield "".join([*held, chunk[:end]])
            held, chunk = [], chunk[end:]
        held.append(chunk)
    yield "".join(held)


def _walk(folder: str, unreadable: Callable[[OSError], object]) -> Iterator[str]:
    for parent, folders, files in os.walk(folder, onerror=unreadable):
        folders.sort()
        for file in sorted(files):
            path = os.path.join(parent, file)
            if os.path.isfile(path):
                yield path
