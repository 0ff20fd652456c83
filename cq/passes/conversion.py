"""Conversion of the values of a bucket to a new version of the combiner, piece by piece in hash order.

Passes convert all values of a bucket before they combine any update of it. A piece is converted, reported and marked as
converted in one transaction, which reads and writes the bucket's state. So each value is converted exactly once.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cq import runtime
from cq.app import QueueCode
from cq.encoding import codec
from cq.errors import CodeMismatch, CqError, InvalidData
from cq.failure import KeyFailure, is_failure
from cq.keys import place
from cq.observer import CONVERSION, Change
from cq.passes.effects import Effects
from cq.passes.reporting import Unreported, finish_changes
from cq.passes.view import View, ViewReader
from cq.plain_text import describe
from cq.store.api import outlived


class ConversionFailed(CqError):
    """A value cannot be converted: the bucket waits for another `convert`, as its updates need the converted value."""


def convert(view: View, reader: ViewReader) -> Effects:
    """The effects of converting and reporting the next values of a bucket; raises `ConversionFailed`."""
    rejected, share = view.plan.rejected, view.share(view.plan.limits.load_bytes)
    values, reached = reader.read_values(view.state.converting or b"", max(1, view.plan.max_report), share)
    effects = Effects(view)
    unreported: Unreported = {}
    for encoded, stored in values:
        key, new = _convert(view.code, encoded, stored)
        data = codec.encode_values([new])[0]
        effects.result.values[encoded] = data
        if data == stored:
            continue
        effects.set(view.keys.value(encoded), data)
        if encoded in rejected:
            unreported[encoded] = stored, rejected[encoded]
        else:
            # Decoded again: `convert` may have changed the former value itself.
            change = Change(key, codec.decode(stored), new, complete=False, cause=CONVERSION)
            effects.report_change(encoded, place(encoded), change)
    effects.result.reported = len(values)
    effects.result.completed = reached is None  # so that the change is finished at once
    finish_changes(effects, view, reader, replace(view.state, converting=reached), unreported)
    return effects


def _convert(code: QueueCode, encoded: bytes, stored: bytes) -> tuple[Any, Any]:
    """The key, and its value of the new version; raises `ConversionFailed`."""
    conversion, convert = code.config.conversion, code.combiner.convert
    if conversion is None or convert is None:
        raise CodeMismatch(f"the combiner of queue {code.config.name!r} has no function `convert`")
    key: Any = encoded
    try:
        key = code.config.key.decode(encoded)
        begun = runtime.monotonic()
        new = convert(key, codec.decode(stored), conversion.version)
        # No transaction could commit it, however often it is tried.
        if late := outlived(begun):
            raise InvalidData(f"convert {late}")
        if new is None or code.value_combiner.is_empty(new):
            raise InvalidData("convert returned an empty value")
        code.config.value.check(new)
        codec.encode_values([new])
    except BaseException as error:
        if not is_failure(error):
            raise
        failure = KeyFailure.of(error)
        where = f" ({failure.trace[-1]})" if failure.trace else ""
        raise ConversionFailed(
            f"key {codec.brief(key)} of queue {code.config.name!r} cannot be converted from {conversion.former} to "
            f"{code.config.combiner}: {describe(error)}{where}"
        ) from error
    return key, new
