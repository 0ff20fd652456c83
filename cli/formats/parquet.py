"""Parquet, written with pyarrow: a row group for each page."""

from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO

from cq.tables.arrow import batches, require_pyarrow, schema
from cq.tables.rows import TableRows


def parquet_parts(rows: TableRows) -> Iterator[bytes]:
    """The bytes of a Parquet file, a part for each page; raises `MissingPackage` and `NotInColumn`."""
    parquet = require_pyarrow("pyarrow.parquet")
    written = _Written()
    with parquet.ParquetWriter(written, schema(rows.fields)) as writer:
        for batch in batches(rows.fields, rows.pages):
            writer.write_batch(batch)
            yield written.take()
    yield written.take()


class _Written(BytesIO):
    """A file in memory that holds one page at most: `take` removes the bytes written."""

    def take(self) -> bytes:
        """Return and forget the bytes written since the last call."""
        data = self.getvalue()
        self.seek(0)
        self.truncate()
        return data

    def close(self) -> None:
        """Do nothing: pyarrow closes the file before its end is taken."""
