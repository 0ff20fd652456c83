"""Doing something for many keys at once, so that one bad key does not delay the others."""

from __future__ import annotations

from collections.abc import Callable

from cq.plaintext import describe
from cq.store.api import error_code


def for_all(encoded_keys: list[bytes], act: Callable[[list[bytes]], None], failed: dict[bytes, str]) -> None:
    """Call `act` with all keys; if it raises, with each key by itself, and note each that fails with its error.

    Errors of the store are raised: they are not a key's.
    """
    try:
        act(encoded_keys)
    except Exception as error:
        if error_code(error) is not None:
            raise
        for encoded in encoded_keys:
            _for_one(encoded, act, failed)


def _for_one(encoded: bytes, act: Callable[[list[bytes]], None], failed: dict[bytes, str]) -> None:
    try:
        act([encoded])
    except Exception as error:
        if error_code(error) is not None:
            raise
        failed[encoded] = describe(error)
