"""Output of rows as text, CSV, lines of JSON and Parquet, for all commands that print a table of data."""
