"""`cq demo visits`: views and visitors of the last minutes, from an access log."""
