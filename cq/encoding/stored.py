"""Records that are stored as the list of their fields, in CBOR."""

from __future__ import annotations

from dataclasses import fields
from functools import cache
from typing import Any, ClassVar, Self, get_type_hints

from cq.encoding import codec


class StoredRecord:
    """The base of a dataclass that is stored as the list of its fields: their order is the stored format."""

    NOUN: ClassVar[str]
    """The noun for the record in error messages."""

    def to_bytes(self) -> bytes:
        """Encode the fields as a list."""
        return codec.encode([getattr(self, name) for name in self.types()])

    @classmethod
    def from_bytes(cls, data: bytes | None) -> Self:
        """Decode a stored list, `data`; None stands for a record with all defaults. Raises `CorruptData`."""
        if data is None:
            return cls()
        return cls(*codec.decode_list(data, tuple(cls.types().values()), cls.NOUN))

    @classmethod
    def types(cls) -> dict[str, Any]:
        """{field: type}, in order."""
        kind: Any = cls
        return _types(kind)


@cache
def _types(of: Any) -> dict[str, Any]:
    hints = get_type_hints(of)
    return {each.name: hints[each.name] for each in fields(of)}
