"""When to save."""
from cadre import _worker

__all__ = ["wanted"]


def wanted(timeout: float = 60.0) -> bool:
    """Whether to save and end with status 94, since nodes wait to join. All ranks call it and get the same answer."""
    return _worker.worker()._checkpoint_wanted(timeout)
