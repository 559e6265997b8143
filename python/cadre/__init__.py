"""What a Python program tells Cadre and asks of it. Needs the standard library only, and runs without Cadre too."""
from cadre import checkpoint
from cadre._errors import (
    AbortedError,
    CadreError,
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    ResourceExhaustedError,
    UnavailableError,
)
from cadre._progress import progress, steps
from cadre._worker import Store, Worker, worker

__all__ = [
    "AbortedError",
    "CadreError",
    "DeadlineExceededError",
    "FailedPreconditionError",
    "InvalidArgumentError",
    "NotFoundError",
    "ResourceExhaustedError",
    "Store",
    "UnavailableError",
    "Worker",
    "checkpoint",
    "progress",
    "steps",
    "worker",
]


def __getattr__(name: str) -> str:
    if name == "__version__":
        from importlib.metadata import version  # takes longer to import than all of this

        return version("cadre-train")
    raise AttributeError("module %r has no attribute %r" % (__name__, name))
