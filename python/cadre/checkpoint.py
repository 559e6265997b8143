"""A training's state in the memory of its node, where it outlives the workers, and when to save to disk."""
from __future__ import annotations

import operator

from cadre import _worker
from cadre._errors import InvalidArgumentError

TYPE_CHECKING = False  # typing takes longer to import than all of this
if TYPE_CHECKING:
    from typing import Any, Optional, Tuple

_MAX_STEP = 2**63 - 1
__all__ = ["latest", "save", "spill", "wait", "wanted"]


def save(state: Any, step: int, *, replicated: bool = False, partner: bool = True) -> None:
    """Keeps `state` (a dict of anything that can be pickled; tensors are copied while training goes on) as that of `step`.

    Cheap enough for every step. Where the copy is not done by the time an optimizer steps, that step waits for it. replicated: all
    ranks have the same state, as with DistributedDataParallel, and one copy on each node is enough; else each rank has its own, and
    all ranks save in the same steps: in a job of several nodes the next node keeps a copy too, so that a lost node costs a step, and
    save() waits until the last one is there. partner=False does without.
    What goes wrong while it is copied is a RuntimeWarning: training goes on, and the state before stays. A state that cannot be pickled
    is an error at once. A step that is not above those before takes the place of those from it on. Does nothing without Cadre.
    """
    try:
        number = -1 if isinstance(step, bool) else operator.index(step)  # of NumPy too
    except TypeError:
        number = -1
    if not 0 <= number <= _MAX_STEP:
        raise InvalidArgumentError("step: %r; expected a whole number from 0 to %d" % (step, _MAX_STEP))
    from cadre import _memory, _progress  # when it is needed: what most programs never do costs them nothing

    memory = _memory.of_this_worker(replicated, partner, number)
    if memory is not None:
        memory.save(state, number)
        _progress.saved(number)


def wait() -> None:
    """Until the last save() is whole; raises what it failed with. Before something else than an optimizer changes the state's tensors."""
    from cadre import _memory

    if _memory._memory is not None:
        _memory._memory.wait()


def spill(directory: Any, *, every: float = 300.0) -> None:
    """Also writes what is saved to `directory`, which all nodes share, at most once in so many seconds, behind the training.

    The last two are kept; latest() takes one where all nodes that had one in memory are lost, and none that another user wrote, since
    unpickling runs what it says. Called by all ranks before the first
    save() and latest(), which raise where the directory cannot be written to. One that cannot later is a RuntimeWarning.
    """
    from cadre import _memory

    _memory.spill(directory, every)


def latest(*, into: Any = None, replicated: Optional[bool] = None, partner: Optional[bool] = None) -> Tuple[Any, int]:
    """The newest state that all ranks have, with new tensors on the CPU, and its step; (None, -1) where there is none.

    replicated, partner: the state says how it was saved. Told otherwise than it was, it is an error that names the step, as a save()
    that contradicts it is.

    into: a state whose tensors take what was saved, in place, where the saved one has a tensor too; all others are new. It is the state
    then, with what it is made of besides as it was saved. A tensor that the saved state lacks, or has in another shape or type, is an
    InvalidArgumentError, and nothing is changed.

    All ranks call it, before they train, and get the same step. A rank whose state is on another node gets it from there.
    """
    from cadre import _memory

    memory = _memory.of_this_worker(replicated, partner)
    return (None, -1) if memory is None else memory.latest(into)


def wanted(timeout: float = 60.0) -> bool:
    """Whether to save and end with status 94, since nodes wait to join. All ranks call it and get the same answer."""
    return _worker.worker()._checkpoint_wanted(timeout)
