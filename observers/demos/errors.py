"""Why a demo ends early."""

from cq.errors import CqError


class DemoFailed(CqError):
    """A process of the demo has failed, it has not come to its end in time, or its result is not what it must be."""
