"""Operations that were started, and the Work by which PyTorch waits for them."""
from __future__ import annotations

import queue
import threading
import time

import torch
from torch.distributed import distributed_c10d

from cadre._errors import CadreError, DeadlineExceededError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, List, Optional

_SLICE_MS = 100  # until Ctrl-C is heard
_TURN = 0.01  # seconds between looks at messages
BackendError = getattr(torch.distributed, "DistBackendError", RuntimeError)
_Work: Any = getattr(distributed_c10d, "Work", None) or torch._C._distributed_c10d.Work


class Operation:
    """One call: what the runtime is to start and has started for it, the memory that this uses, and what is to be done when it
    has ended. Where something of it is refused, before begin(), nothing has been started."""

    def __init__(self, lib: Any, name: str, of: str, tensors: List[Any], finisher: Optional[Finisher]) -> None:
        self.tensors = tensors  # the caller's, which are the result
        self.memory: List[Any] = []  # what must live until the end
        self.starts: List[Callable[[], Any]] = []  # each gives a handle
        self.handles: List[Any] = []
        self.afterwards: List[Callable[[], Any]] = []
        self.finisher = finisher
        self._lib, self._name, self._of = lib, name, of
        self._lock, self._ended, self._error = threading.Lock(), False, None  # type: Any

    def __del__(self) -> None:
        if self.finisher is not None and not self.done():
            # A call that broke off in begin(). What has been started uses the memory still.
            rest = Operation(self._lib, self._name, self._of, self.tensors, None)
            rest.memory, rest.handles = self.memory, self.handles
            self.finisher.add(rest)
            return
        for handle in self.handles:
            self._lib.cadre_work_free(handle)

    def begin(self) -> None:
        for start in self.starts:
            self.handles.append(start())
        self.starts = []

    def done(self) -> bool:
        return self._ended or all(self._lib.cadre_work_done(handle) for handle in self.handles)

    def wait(self, seconds: Optional[float] = None) -> None:
        """Until it has ended; the communicator's own timeout ends it, naming the rank that did not come."""
        if not self._ended:
            deadline = None if seconds is None else time.monotonic() + seconds
            error = None
            for handle in self.handles:
                try:
                    self._wait_for(handle, deadline)
                except CadreError as failure:
                    error = error or failure
            with self._lock:
                self._end(error)
        if self._error is not None:
            raise BackendError(self._error)

    def _wait_for(self, handle: Any, deadline: Optional[float]) -> None:
        while True:
            try:
                self._lib.cadre_work_wait(handle, _SLICE_MS)
                return
            except DeadlineExceededError:
                if self._lib.cadre_work_done(handle):
                    self._lib.cadre_work_wait(handle, 0)  # the operation's own outcome: it may have ended just now
                    return
                if deadline is not None and time.monotonic() >= deadline:
                    raise BackendError("cadre: %s%s was not done in the time that wait() was given" % (self._name, self._of)) from None

    def _end(self, error: Any) -> None:
        if self._ended:
            return
        if error is None:
            for step in self.afterwards:
                step()
        else:
            self._error = "cadre: %s%s: %s" % (self._name, self._of, error)
        self.memory, self.afterwards, self._ended = [], [], True

    def result(self) -> List[Any]:
        if self._error is not None:
            raise BackendError(self._error)
        return self.tensors


class Finisher:
    """Waits for operations for which no thread of the program waits, one after the other."""

    def __init__(self) -> None:
        self._queue: Any = None
        # Collected memory may have an operation in it, which comes here while this thread is here already.
        self._lock = threading.RLock()

    def add(self, operation: Operation, future: Any = None) -> None:
        if operation.done():
            self.finish(operation, future)
            return
        with self._lock:
            if self._queue is None:
                self._queue = queue.SimpleQueue()
                threading.Thread(target=self._run, args=(self._queue,), name="cadre finisher", daemon=True).start()
            self._queue.put((operation, future))

    def stop(self) -> None:
        """What was added is finished all the same."""
        with self._lock:
            if self._queue is not None:
                self._queue.put(None)
                self._queue = None

    @staticmethod
    def finish(operation: Operation, future: Any) -> None:
        try:
            operation.wait()
        except Exception:
            pass  # it is the operation's, and the future's by its result()
        if future is not None:
            future.set_result(None)

    @staticmethod
    def _run(operations: Any) -> None:
        while True:
            item = operations.get()
            if item is None:
                return
            operation, future = item
            Finisher.finish(operation, future)
            item = operation = future = None  # the next may be long in coming


class MessagesFinisher(Finisher):
    """In the order in which they end: a message is done when the other side wants it, and nothing waits behind it."""

    @staticmethod
    def _run(operations: Any) -> None:
        waiting: Any = []
        stopped = False
        while waiting or not stopped:
            try:
                item = operations.get(timeout=_TURN if waiting else None)
                if item is None:
                    stopped = True
                else:
                    waiting.append(item)
            except queue.Empty:
                pass
            done = [item for item in waiting if item[0].done()]
            waiting = [item for item in waiting if item not in done]
            for operation, future in done:
                Finisher.finish(operation, future)
            item = done = operation = future = None  # the next may be long in coming


class Work(_Work):
    """What PyTorch has of an operation."""

    def __init__(self, operation: Operation) -> None:
        super().__init__()
        operation.begin()
        self._operation, self._finisher, self._future = operation, operation.finisher, None  # type: Any

    def wait(self, timeout: Any = None) -> bool:
        seconds = timeout.total_seconds() if timeout is not None else 0
        self._operation.wait(seconds if seconds > 0 else None)
        return True

    def is_completed(self) -> bool:
        if not self._operation.done():
            return False
        Finisher.finish(self._operation, None)  # some results come into the caller's tensors only then
        return True

    def is_success(self) -> bool:
        return self.is_completed() and self._operation._error is None

    def synchronize(self) -> None:
        self.wait()

    def result(self) -> List[Any]:
        return self._operation.result()

    def get_future(self) -> Any:
        if self._future is None:
            ended, operation = torch.futures.Future(), self._operation
            # An error that a callback raises is one for C++ too, unlike that of Future.set_exception.
            self._future = ended.then(lambda _: operation.result())
            self._finisher.add(operation, ended)
        return self._future

    def __del__(self) -> None:
        # The runtime may still use the memory, and what comes afterwards is not done yet.
        operation = getattr(self, "_operation", None)
        if operation is not None and not operation._ended and self._future is None:
            self._finisher.add(operation)
