"""Fits a line to points, on all workers of a job: cadre.h through ctypes, and nothing else."""
import ctypes
import os
import sys

POINTS, EPOCHS, TIMEOUT_MS = 1000, 30, 60000
OK, FLOAT64, SUM = 0, 1, 0  # of cadre.h


class CadreError(Exception):
    pass


def load_library():
    """$CADRE_LIBRARY, else ../../lib beside this script, else what the linker finds."""
    name = "libcadre.so.0"
    here = os.path.dirname(os.path.abspath(__file__))
    beside = os.path.normpath(os.path.join(here, "..", "..", "lib", name))
    given = os.environ.get("CADRE_LIBRARY")
    tried = []
    for path in [given] if given else [beside, name]:
        try:
            return ctypes.CDLL(path)
        except OSError as error:
            tried.append(str(error))  # which names the path
    sys.exit(f"fit.py: no Cadre library: {'; '.join(tried)}; CADRE_LIBRARY may name one")


def declare(library):
    """ctypes takes what it is not told for an int, which cuts pointers in two."""

    def check(status, function, arguments):
        if status != OK:
            name, what = library.cadre_status_name(status), library.cadre_last_error()
            raise CadreError(f"{function.__name__}: {name.decode()}: {what.decode()}")

    handle, out = ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p)
    size, number, integer, text = ctypes.c_size_t, ctypes.c_int, ctypes.c_int64, ctypes.c_char_p
    checked = {
        "cadre_worker_connect": [out],
        "cadre_communicator_connect": [handle, text, integer, out],
        "cadre_all_reduce": [handle, handle, size, number, number, out],
        "cadre_work_wait_or_abort": [handle, handle, integer],
    }
    others = {
        "cadre_status_name": (text, [number]),
        "cadre_last_error": (text, []),
        "cadre_worker_rank": (number, [handle]),
        "cadre_worker_world_size": (number, [handle]),
        "cadre_work_free": (None, [handle]),
        "cadre_communicator_free": (None, [handle]),
        "cadre_worker_free": (None, [handle]),
    }
    for name, arguments in checked.items():
        function = getattr(library, name)
        function.argtypes, function.restype, function.errcheck = arguments, number, check
    for name, (result, arguments) in others.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, result
    return library


def sum_over_ranks(cadre, communicator, values):
    """Adds a ctypes array of doubles over all ranks, in place."""
    work = ctypes.c_void_p()
    try:
        cadre.cadre_all_reduce(
            communicator, values, len(values), FLOAT64, SUM, ctypes.byref(work))
        # Returns, or raises, when the values are ours again.
        cadre.cadre_work_wait_or_abort(work, communicator, TIMEOUT_MS)
    finally:
        cadre.cadre_work_free(work)


def train(cadre, worker, communicator):
    rank, world_size = cadre.cadre_worker_rank(worker), cadre.cadre_worker_world_size(worker)
    slope = intercept = 0.0
    for epoch in range(EPOCHS):
        sums = (ctypes.c_double * 3)()  # the gradient of slope and intercept, and the loss
        for i in range(rank, POINTS, world_size):  # this rank's share
            x = 2 * i / (POINTS - 1) - 1
            error = slope * x + intercept - (3 * x + 2)
            sums[0] += error * x / POINTS
            sums[1] += error / POINTS
            sums[2] += error * error / POINTS
        sum_over_ranks(cadre, communicator, sums)
        slope -= sums[0]
        intercept -= sums[1]
        if rank == 0:
            print(f"epoch {epoch}: loss {sums[2]:.6f}")
    print(f"rank {rank} of {world_size}: y = {slope:.2f} x + {intercept:.2f}")


def main():
    cadre = declare(load_library())
    worker, communicator = ctypes.c_void_p(), ctypes.c_void_p()
    try:
        cadre.cadre_worker_connect(ctypes.byref(worker))
        cadre.cadre_communicator_connect(worker, b"world", TIMEOUT_MS, ctypes.byref(communicator))
        train(cadre, worker, communicator)
    except CadreError as error:
        sys.exit(f"fit.py: {error}")
    finally:
        cadre.cadre_communicator_free(communicator)
        cadre.cadre_worker_free(worker)


if __name__ == "__main__":
    main()
