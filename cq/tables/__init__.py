"""Values of queues and tops as tables: Arrow's columns for analysis, and rows in pages for files.

pyarrow is imported when a function for Arrow is called; the extra `arrow` has it.
"""

from cq.tables.arrow import arrow_reader, to_arrow, top_to_arrow

__all__ = ["arrow_reader", "to_arrow", "top_to_arrow"]
