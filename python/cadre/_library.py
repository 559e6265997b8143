"""libcadre.so.0 by ctypes: found and declared when it is first needed."""
from __future__ import annotations

import os

from cadre._errors import CadreError, error_of

TYPE_CHECKING = False  # typing takes longer to import than all of this
if TYPE_CHECKING:
    from typing import Any

_NAME = "libcadre.so.0"
_loaded: Any = None


def library() -> Any:
    """$CADRE_LIBRARY, else that of the wheel, else what the loader finds."""
    global _loaded
    if _loaded is None:
        _loaded = _declare(_load())
    return _loaded


def _load() -> Any:
    import ctypes

    beside = os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib", _NAME)
    given = os.environ.get("CADRE_LIBRARY")
    tried = []
    for path in [given] if given else [beside, _NAME]:
        try:
            return ctypes.CDLL(path)
        except OSError as error:
            tried.append(str(error))  # which names the path
    raise CadreError("no Cadre library: %s; CADRE_LIBRARY may name one" % "; ".join(tried))


def _declare(lib: Any) -> Any:
    """ctypes takes what it is not told for an int, which cuts pointers in two."""
    import ctypes as c

    handle, text, number, size, long = c.c_void_p, c.c_char_p, c.c_int, c.c_size_t, c.c_int64
    made = c.POINTER(handle)

    def check(status: int, function: Any, arguments: Any) -> None:
        if status != 0:
            raise error_of(status, lib.cadre_last_error().decode(errors="replace"))

    checked = {
        "worker_connect": [made],
        "worker_connect_at": [number, number, text, long, made],
        "worker_barrier": [handle, text, long],
        "checkpoint_wanted": [handle, long, c.POINTER(number)],
        "memory_open": [handle, number, long, made],
        "memory_write": [handle, c.POINTER(handle), c.POINTER(size), size],
        "memory_commit": [handle, long],
        "memory_wait_for_partner": [handle],
        "memory_spill": [handle, text, long],
        "memory_saved_as": [handle, c.POINTER(number)],
        "memory_latest": [handle, c.POINTER(long), c.POINTER(handle), c.POINTER(size)],
        "store_set": [handle, text, text, size],
        "store_get": [handle, text, long, text, size, c.POINTER(size)],
        "store_add": [handle, text, long, c.POINTER(long)],
        "store_compare_and_set": [handle, text, text, size, text, size],
        "store_delete": [handle, text],
        "communicator_connect_group": [handle, text, c.POINTER(number), size, long, made],
        "communicator_abort": [handle],
        "all_reduce": [handle, handle, size, number, number, made],
        "reduce": [handle, handle, size, number, number, number, made],
        "broadcast": [handle, handle, size, number, number, made],
        "all_gather": [handle, handle, handle, size, number, made],
        "reduce_scatter": [handle, handle, handle, size, number, number, made],
        "barrier": [handle, made],
        "send": [handle, handle, size, number, number, number, made],
        "receive": [handle, handle, size, number, number, number, made],
        "work_wait": [handle, long],
    }
    for name, arguments in checked.items():
        function = getattr(lib, "cadre_" + name)
        function.argtypes, function.restype, function.errcheck = arguments, number, check
    for name in ("rank", "world_size", "local_rank", "restart_count", "generation"):
        function = getattr(lib, "cadre_worker_" + name)
        function.argtypes, function.restype = [handle], long if name == "generation" else number
    for name in ("work_free", "communicator_free", "worker_free"):
        function = getattr(lib, "cadre_" + name)
        function.argtypes, function.restype = [handle], None
    lib.cadre_work_done.argtypes, lib.cadre_work_done.restype = [handle], number
    lib.cadre_last_error.argtypes, lib.cadre_last_error.restype = [], text
    return lib
