"""Tables of SQL databases: the target, the table's layout, cq's own tables, checks, sweeps and verification."""
