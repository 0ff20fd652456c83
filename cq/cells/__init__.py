"""Users spread over many stores, each store a cell; and the directory that says where each user is.

The room may import keys, configuration, encoding and the store. It knows nothing of queues.
"""

from cq.cells.ask_all import (
    gather,
)
from cq.cells.cells import (
    Cells,
)
from cq.cells.user_data import (
    UserData,
)

__all__ = [
    "Cells",
    "UserData",
    "gather",
]
