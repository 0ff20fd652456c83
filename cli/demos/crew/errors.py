"""The error of a demo."""

from cq.errors import CqError


class DemoFailed(CqError):
    """The demo exceeded its time limit, or its result differs from the recount."""
