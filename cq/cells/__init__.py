"""Cells: users spread over many stores, and a directory that records the cell of each user.

`Cells` runs transactions of users in their cells and moves users between cells; `Router` leads web requests to the
cells of their users. The room may import keys, configuration, encoding and the store; it does not import queues.
"""

from cq.cells.ask_all import gather, gather_users
from cq.cells.cells import Cells
from cq.cells.names import Names
from cq.cells.old_ids import find_old_id, map_old_ids
from cq.cells.router import Router, Rule
from cq.cells.searching import entries, search
from cq.cells.user_data import UserData

__all__ = [
    "Cells",
    "Names",
    "Router",
    "Rule",
    "UserData",
    "entries",
    "find_old_id",
    "gather",
    "gather_users",
    "map_old_ids",
    "search",
]
