"""Values of queues and tops as tables: rows in pages, and Arrow's columns."""
