"""`cq web`, the dashboard: live pages about a store, which read only, or also act if the operator allows it.

A program like the benchmark and the demos: it may import all rooms except those of other programs.
"""
