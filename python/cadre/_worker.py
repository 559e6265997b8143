"""This process as one of its job's generation: over the library, or alone where nobody started it as a worker."""
from __future__ import annotations

import _thread
import os

from cadre._errors import DeadlineExceededError, FailedPreconditionError, InvalidArgumentError, NotFoundError

TYPE_CHECKING = False  # typing takes longer to import than all of this
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Optional

_STARTED_BY = ("CADRE_AGENT", "RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_STEP_ID")
_MAX_KEY_BYTES, _MAX_VALUE_BYTES = 256, 65536  # of cadre.h
NO_WORKER = "cadre: a forked child is no worker; call this in the process that Cadre started"
_WAIT_SLICE = 0.1  # seconds until Ctrl-C is heard
_worker: "Optional[Worker]" = None
_connecting = _thread.allocate_lock()  # threading is imported where it is needed


def _interruptibly(call: Callable[[], Any]) -> Any:
    """Runs a call that blocks in C on a thread of its own: Python's signal handlers run only between waits here."""
    import threading

    outcome: Dict[str, Any] = {}

    def run() -> None:
        try:
            outcome["value"] = call()
        except BaseException as error:  # of that thread, raised in this one
            outcome["error"] = error

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(_WAIT_SLICE)
    if "error" in outcome:
        raise outcome["error"]
    return outcome["value"]


def _milliseconds(timeout: float) -> int:
    if not timeout >= 0:
        raise InvalidArgumentError("timeout: %r; expected seconds, 0 or more" % timeout)
    return int(min(timeout, 366 * 86400) * 1000)


def _key(key: str) -> bytes:
    encoded = key.encode()
    if not 1 <= len(encoded) <= _MAX_KEY_BYTES or b"\0" in encoded:
        raise InvalidArgumentError("key %.40r: expected 1 to %d bytes without NUL" % (key, _MAX_KEY_BYTES))
    return encoded


def _value(value: bytes) -> bytes:
    if len(value) > _MAX_VALUE_BYTES:
        raise InvalidArgumentError("value of %d bytes: expected %d at most" % (len(value), _MAX_VALUE_BYTES))
    return bytes(value)


class Store:
    """Keys and values that the workers of a generation share, and that end with it. Timeouts are in seconds."""

    def set(self, key: str, value: bytes) -> None:
        raise NotImplementedError

    def get(self, key: str, timeout: float = 60.0) -> bytes:
        """Waits until the key is there; NotFoundError where it is not and timeout is 0."""
        raise NotImplementedError

    def add(self, key: str, delta: int) -> int:
        """The sum afterwards; a key that is not there counts as 0."""
        raise NotImplementedError

    def compare_and_set(self, key: str, expected: bytes, desired: bytes) -> None:
        """FailedPreconditionError where the key holds something else; b"" is expected of a missing one."""
        raise NotImplementedError

    def delete(self, key: str) -> None:
        raise NotImplementedError


class _LocalStore(Store):
    def __init__(self) -> None:
        import threading

        self._values: Dict[bytes, bytes] = {}
        self._changed = threading.Condition()

    def set(self, key: str, value: bytes) -> None:
        with self._changed:
            self._values[_key(key)] = _value(value)
            self._changed.notify_all()

    def get(self, key: str, timeout: float = 60.0) -> bytes:
        seconds, name = _milliseconds(timeout) / 1000, _key(key)
        with self._changed:
            if self._changed.wait_for(lambda: name in self._values, seconds):
                return self._values[name]
        raise (DeadlineExceededError if seconds else NotFoundError)("key %r is not there" % key)

    def add(self, key: str, delta: int) -> int:
        with self._changed:
            try:
                total = int(self._values.get(_key(key), b"0")) + delta
            except ValueError:
                raise FailedPreconditionError("key %r holds no number" % key) from None
            self._values[_key(key)] = b"%d" % total
            self._changed.notify_all()
            return total

    def compare_and_set(self, key: str, expected: bytes, desired: bytes) -> None:
        with self._changed:
            if self._values.get(_key(key), b"") != expected:
                raise FailedPreconditionError("key %r holds another value" % key)
            self._values[_key(key)] = _value(desired)
            self._changed.notify_all()

    def delete(self, key: str) -> None:
        with self._changed:
            self._values.pop(_key(key), None)


class _SharedStore(Store):
    def __init__(self, worker: "Worker") -> None:
        self._worker = worker

    def set(self, key: str, value: bytes) -> None:
        name, data = _key(key), _value(value)
        self._worker._call("store_set", name, data, len(data))

    def get(self, key: str, timeout: float = 60.0) -> bytes:
        import ctypes

        room, size = ctypes.create_string_buffer(_MAX_VALUE_BYTES + 1), ctypes.c_size_t()
        self._worker._call("store_get", _key(key), _milliseconds(timeout), room, len(room), ctypes.byref(size))
        return room.raw[: size.value]

    def add(self, key: str, delta: int) -> int:
        import ctypes

        total = ctypes.c_int64()
        self._worker._call("store_add", _key(key), delta, ctypes.byref(total))
        return total.value

    def compare_and_set(self, key: str, expected: bytes, desired: bytes) -> None:
        name, old, new = _key(key), _value(expected), _value(desired)
        self._worker._call("store_compare_and_set", name, old, len(old), new, len(new))

    def delete(self, key: str) -> None:
        self._worker._call("store_delete", _key(key))


class Worker:
    """Where this process stands in its job, which never changes."""

    rank, world_size, local_rank, generation, restart_count = 0, 1, 0, 0, 0
    store: Store

    def __init__(self) -> None:
        self._owner, self._lib, self._handle = os.getpid(), None, None  # type: ignore[var-annotated]
        if not any(name in os.environ for name in _STARTED_BY):
            self.store = _LocalStore()
            return
        import ctypes

        from cadre._library import library

        lib, handle = library(), ctypes.c_void_p()
        _interruptibly(lambda: lib.cadre_worker_connect(ctypes.byref(handle)))
        self._lib, self._handle = lib, handle  # never freed: a call may still run on a thread at the end
        for name in ("rank", "world_size", "local_rank", "generation", "restart_count"):
            setattr(self, name, getattr(lib, "cadre_worker_" + name)(handle))
        self.store = _SharedStore(self)

    def barrier(self, name: str = "barrier", timeout: float = 300.0) -> None:
        """Waits until all ranks have called it as often with that name."""
        milliseconds, encoded = _milliseconds(timeout), _key(name)
        if self._lib is not None:
            self._call("worker_barrier", encoded, milliseconds)

    def _checkpoint_wanted(self, timeout: float) -> bool:
        if self._lib is None:
            return False
        import ctypes

        wanted = ctypes.c_int()
        self._call("checkpoint_wanted", _milliseconds(timeout), ctypes.byref(wanted))
        return wanted.value != 0

    def _call(self, name: str, *arguments: Any) -> None:
        if os.getpid() != self._owner:
            raise FailedPreconditionError(NO_WORKER)
        function = getattr(self._lib, "cadre_" + name)
        _interruptibly(lambda: function(self._handle, *arguments))


def worker() -> Worker:
    """This process's worker, connected at the first call; rank 0 of 1 where nobody started it as one."""
    global _worker
    if _worker is None:
        with _connecting:
            if _worker is None:
                _worker = Worker()
    return _worker
