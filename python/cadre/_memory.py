"""The state of a training in the memory of its node, over the library's cadre_memory_*."""
from __future__ import annotations

import os
import sys

from cadre import _worker
from cadre._errors import CadreError, FailedPreconditionError, InvalidArgumentError, NotFoundError
from cadre._staging import Staging
from cadre._state import Copy, restored

TYPE_CHECKING = False  # typing takes longer to import than all of this
if TYPE_CHECKING:
    from typing import Any, Optional, Tuple

_TIMEOUT = 600.0  # seconds until all ranks have called latest()
_REPLICATED, _NO_PARTNER = 1, 2  # of cadre.h


class Memory:
    """What this worker keeps on its node. Any thread of its process."""

    def __init__(self, worker: _worker.Worker, replicated: Optional[bool], partner: Optional[bool]) -> None:
        import threading

        self._lock = threading.RLock()  # held by save() and by whoever waits for its copy
        # As a call said; None: none has. What latest() gives without being told says the first one.
        self.replicated, self.partner = replicated, partner
        self._found = -1  # the step that latest() gave last
        self._worker, self._library, self._handle = worker, worker._lib, None
        self._open(bool(replicated), partner is not False)
        self._staging = Staging()
        self._copying: Optional[Copy] = None  # what the thread copies
        self._thread: Any = None
        self._error: Optional[BaseException] = None
        self._failing: Optional[type] = None  # what was said of the copies since the last one that went well
        self._behind = False

    def _open(self, replicated: bool, partner: bool) -> None:
        import ctypes

        if self._handle is not None:
            self._library.cadre_memory_free(self._handle)
        self._handle, self._is_open_as = ctypes.c_void_p(), (replicated, partner)
        flags = (_REPLICATED if replicated else 0) | (0 if partner else _NO_PARTNER)
        self._library.cadre_memory_open(self._worker._handle, flags, int(_TIMEOUT * 1000), ctypes.byref(self._handle))
        if _spill is not None:
            directory, every = _spill
            self._library.cadre_memory_spill(self._handle, os.fsencode(directory), int(every * 1000))

    def _use(self, replicated: bool, partner: bool) -> None:
        if (replicated, partner) != self._is_open_as:
            self.settle()
            self._open(replicated, partner)

    def agree(self, step: Optional[int], replicated: Optional[bool], partner: Optional[bool]) -> None:
        """That is what a call says of its state. A contradiction to what was said, or to what was found, is an error."""
        for name, now in (("replicated", replicated), ("partner", partner)):
            before = getattr(self, name)
            if now is None or before is None or now == before:
                continue
            if name == "replicated" and self._worker.world_size == 1:
                continue  # it is the same for one rank
            what = "" if step is None else "step %d: " % step
            if self._found >= 0 and name == "replicated":
                raise InvalidArgumentError(
                    "%sreplicated=%r, but the state of step %d, which latest() gave, was saved with replicated=%r: "
                    "expected the same in all calls" % (what, now, self._found, before)
                )
            raise InvalidArgumentError("%s%s=%r here and %r before: expected the same in all calls" % (what, name, now, before))
        self.replicated = self.replicated if replicated is None else replicated
        self.partner = self.partner if partner is None else partner

    def save(self, state: Any, step: int) -> None:
        with self._lock:
            self._use(bool(self.replicated), self.partner is not False)
            self._save(state, step)

    def _save(self, state: Any, step: int) -> None:
        import threading

        self.settle()
        if self.replicated and self._worker.local_rank != 0:
            return  # this node's first rank keeps it
        if (self.partner and not self.replicated) or _spill is not None:
            self._await_copies()
        # Where there is no such hook nobody says when parameters are about to change.
        self._behind = self._behind or _before_each_step(self._before_step)
        self._copying = Copy(state, self._staging)
        self._thread = threading.Thread(target=self._copy, args=(self._copying, step), name="cadre checkpoint")
        self._thread.start()
        if not self._behind:
            self.settle()

    def _copy(self, copy: Copy, step: int) -> None:
        try:
            copy.write(self._library, self._handle, step)
        except BaseException as error:  # of that thread, said by the next that waits
            self._error = error

    def wait(self) -> None:
        if self._worker._owner != os.getpid():
            raise FailedPreconditionError(_worker.NO_WORKER)
        with self._lock:
            if self._thread is not None:
                self._thread.join()
                self._thread = self._copying = None
            error, self._error = self._error, None
        if error is not None:
            raise error

    def _before_step(self, *_: Any) -> None:
        """An optimizer is about to change the tensors: the host waits where some of its own are not copied yet, else the GPUs do."""
        copying = self._copying
        if copying is None or copying.must_stay or self._worker._owner != os.getpid():
            self.settle()
        else:
            copying.may_change()

    def settle(self) -> None:
        """As wait(), in the midst of a training, which goes on without a checkpoint."""
        if self._worker._owner != os.getpid() or self._thread is None:
            return  # in a forked child, which the thread did not come along to; or there is nothing to wait for
        try:
            self.wait()
            self._failing = None
        except Exception as error:
            if type(error) is not self._failing:  # said once, and not in every step
                _warn(error)
            self._failing = type(error)

    def _await_copies(self) -> None:
        """Until the last state is on the partner node: ranks that run ahead might have no step in common. Not until it is spilled."""
        try:
            _worker._interruptibly(lambda: self._library.cadre_memory_wait_for_partner(self._handle))
        except CadreError as error:  # said once by the library
            _warn(error)

    def latest(self, into: Any) -> Tuple[Any, int]:
        import ctypes

        step, data, size = ctypes.c_int64(), ctypes.c_void_p(), ctypes.c_size_t()
        self.settle()
        if self.replicated is None:
            self._use(self._saved_replicated(), self.partner is not False)
        else:
            self._use(self.replicated, self.partner is not False)
        found = ctypes.byref(step), ctypes.byref(data), ctypes.byref(size)
        try:
            _worker._interruptibly(lambda: self._library.cadre_memory_latest(self._handle, *found))
        except NotFoundError:
            return None, -1
        self._found = step.value
        if self.replicated is None:
            self.replicated = self._is_open_as[0]
        view = memoryview((ctypes.c_char * size.value).from_address(data.value)).cast("B")
        return restored(view, into), step.value


    def _saved_replicated(self) -> bool:
        """How the newest state was saved that any rank has."""
        import ctypes

        flags = ctypes.c_int()
        try:
            _worker._interruptibly(lambda: self._library.cadre_memory_saved_as(self._handle, ctypes.byref(flags)))
        except NotFoundError:
            return False
        return flags.value == _REPLICATED


def _warn(error: Exception) -> None:
    import warnings

    warnings.warn("cadre.checkpoint: %s" % error, RuntimeWarning, stacklevel=3)


def _before_each_step(call: Any) -> bool:
    # torch.optim has no attribute of that name: it takes its submodules out again.
    optimizer = sys.modules.get("torch.optim.optimizer")
    register = getattr(optimizer, "register_optimizer_step_pre_hook", None)
    if register is None:
        return False  # PyTorch before 2.0
    register(call)
    return True


_memory: Optional[Memory] = None
_spill: Optional[Tuple[Any, float]] = None  # the directory, and seconds


def spill(directory: Any, every: float) -> None:
    global _spill
    if not 0 <= every <= 366 * 86400:
        raise InvalidArgumentError("every: %r; expected seconds, 0 or more" % (every,))
    if _memory is not None:
        raise FailedPreconditionError("cadre.checkpoint.spill() must be called before the first save() and latest()")
    _spill = os.path.abspath(directory), every


def of_this_worker(replicated: Optional[bool], partner: Optional[bool], step: Optional[int] = None) -> Optional[Memory]:
    """None where nobody keeps memory for it: the worker was not started by Cadre."""
    global _memory
    if _memory is None:
        if not os.environ.get("CADRE_CHECKPOINT_MEMORY"):
            return None
        worker = _worker.worker()
        if worker._lib is None:
            return None
        _memory = Memory(worker, replicated, partner)
    if _memory._worker._owner != os.getpid():
        raise FailedPreconditionError(_worker.NO_WORKER)
    _memory.agree(step, replicated, partner)
    return _memory
