"""The methods that transactions and databases share: atomic operations, operations on prefixes, and `[]`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cq.store.embedded.binding import atomic
from cq.store.embedded.binding.keys import key_bytes, strinc


def _operation(code: int, text: str) -> Callable[[Any, Any, Any], None]:
    """A method for an atomic operation."""

    def operation(self: Any, key: Any, param: Any) -> None:
        self._atomic_operation(code, key, param)

    operation.__doc__ = text
    return operation


class ReadOperations:
    """Reads by a prefix and by `[]`."""

    __slots__ = ()

    get: Any
    get_range: Any

    def get_range_startswith(self, prefix: Any, *args: Any, **kwargs: Any) -> Any:
        """The rows whose keys begin with `prefix`."""
        prefix = key_bytes(prefix)
        return self.get_range(prefix, strinc(prefix), *args, **kwargs)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            return self.get_range(key.start, key.stop, reverse=(key.step == -1))
        return self.get(key)


class Operations(ReadOperations):
    """The atomic operations, and writes by a prefix and by `[]`.

    `key` and `param` are bytes; `binding.atomic` defines absent keys and other lengths. As in the binding, every atomic
    operation has a second name, with or without the prefix `bit_`.
    """

    __slots__ = ()

    set: Any
    clear: Any
    clear_range: Any
    _atomic_operation: Any

    def clear_range_startswith(self, prefix: Any) -> None:
        """Clear the keys that begin with `prefix`."""
        prefix = key_bytes(prefix)
        self.clear_range(prefix, strinc(prefix))

    def __setitem__(self, key: Any, value: Any) -> None:
        self.set(key, value)

    def __delitem__(self, key: Any) -> None:
        if isinstance(key, slice):
            self.clear_range(key.start, key.stop)
        else:
            self.clear(key)

    add = _operation(atomic.ADD, "Add to a little-endian number; the result has the length of `param`.")
    bit_and = _operation(atomic.AND, "Bitwise and; an absent key gets `param`.")
    bit_or = _operation(atomic.OR, "Bitwise or.")
    bit_xor = _operation(atomic.XOR, "Bitwise exclusive or.")
    append_if_fits = _operation(atomic.APPEND_IF_FITS, "Append to a value, if the result fits.")
    max = _operation(atomic.MAX, "Keep the greater of two little-endian numbers.")
    min = _operation(atomic.MIN, "Keep the smaller of two little-endian numbers; an absent key gets `param`.")
    byte_min = _operation(atomic.BYTE_MIN, "Keep what sorts first; an absent key gets `param`.")
    byte_max = _operation(atomic.BYTE_MAX, "Keep what sorts last.")
    compare_and_clear = _operation(atomic.COMPARE_AND_CLEAR, "Clear a key if it has this value.")
    set_versionstamped_key = _operation(atomic.SET_VERSIONSTAMPED_KEY, "Set a key with the versionstamp.")
    set_versionstamped_value = _operation(
        atomic.SET_VERSIONSTAMPED_VALUE, "Set a value with the versionstamp."
    )
    xor = bit_xor
    bit_append_if_fits, bit_compare_and_clear = append_if_fits, compare_and_clear
    bit_byte_min, bit_byte_max = byte_min, byte_max
    bit_set_versionstamped_key = set_versionstamped_key
    bit_set_versionstamped_value = set_versionstamped_value


for _name in ("and", "or"):
    setattr(Operations, _name, getattr(Operations, f"bit_{_name}"))
for _name in ("add", "max", "min"):
    setattr(Operations, f"bit_{_name}", getattr(Operations, _name))
