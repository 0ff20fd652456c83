"""The methods that transactions and databases share: atomic operations, operations on prefixes, and `[]`."""

from __future__ import annotations

from typing import Any

from cq.store.embedded.binding import atomic
from cq.store.embedded.binding.keys import key_bytes, strinc


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

    def _atomic_operation(self, opcode: int, key: Any, param: Any) -> None:
        raise NotImplementedError

    def add(self, key: Any, param: Any) -> None:
        """Add to a little-endian number; the result has the length of `param`."""
        self._atomic_operation(atomic.ADD, key, param)

    def bit_and(self, key: Any, param: Any) -> None:
        """Bitwise and; an absent key gets `param`."""
        self._atomic_operation(atomic.AND, key, param)

    def bit_or(self, key: Any, param: Any) -> None:
        """Bitwise or."""
        self._atomic_operation(atomic.OR, key, param)

    def bit_xor(self, key: Any, param: Any) -> None:
        """Bitwise exclusive or."""
        self._atomic_operation(atomic.XOR, key, param)

    def append_if_fits(self, key: Any, param: Any) -> None:
        """Append to a value, unless the result would be too long."""
        self._atomic_operation(atomic.APPEND_IF_FITS, key, param)

    def max(self, key: Any, param: Any) -> None:
        """Keep the greater of two little-endian numbers."""
        self._atomic_operation(atomic.MAX, key, param)

    def min(self, key: Any, param: Any) -> None:
        """Keep the smaller of two little-endian numbers; an absent key gets `param`."""
        self._atomic_operation(atomic.MIN, key, param)

    def byte_min(self, key: Any, param: Any) -> None:
        """Keep the byte string that sorts first; an absent key gets `param`."""
        self._atomic_operation(atomic.BYTE_MIN, key, param)

    def byte_max(self, key: Any, param: Any) -> None:
        """Keep the byte string that sorts last."""
        self._atomic_operation(atomic.BYTE_MAX, key, param)

    def compare_and_clear(self, key: Any, param: Any) -> None:
        """Clear a key if it has this value."""
        self._atomic_operation(atomic.COMPARE_AND_CLEAR, key, param)

    def set_versionstamped_key(self, key: Any, param: Any) -> None:
        """Set a key that contains the versionstamp of the commit, at the offset in its last four bytes."""
        self._atomic_operation(atomic.SET_VERSIONSTAMPED_KEY, key, param)

    def set_versionstamped_value(self, key: Any, param: Any) -> None:
        """Set a value that contains the versionstamp of the commit, at the offset in its last four bytes."""
        self._atomic_operation(atomic.SET_VERSIONSTAMPED_VALUE, key, param)

    xor = bit_xor
    bit_append_if_fits, bit_compare_and_clear = append_if_fits, compare_and_clear
    bit_byte_min, bit_byte_max = byte_min, byte_max
    bit_set_versionstamped_key = set_versionstamped_key
    bit_set_versionstamped_value = set_versionstamped_value


for _name in ("and", "or"):
    setattr(Operations, _name, getattr(Operations, f"bit_{_name}"))
for _name in ("add", "max", "min"):
    setattr(Operations, f"bit_{_name}", getattr(Operations, _name))
