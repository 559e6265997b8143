# Lets the threads of PyTorch's process groups finish before the interpreter ends. Gloo's threads drop the tensors of a
# finished operation a moment later, and take the interpreter's lock for that; if the interpreter is being finalized by
# then, they call std::terminate. sitecustomize.py runs this file when torch.distributed is imported, in workers and in
# the processes that they start. Any Python 3 must be able to read it.
_LOOK, _QUIET_LOOKS = 0.01, 5  # seconds; how often in a row all others are asleep
_AT_MOST = 1  # second; a thread of the program itself may work until the end


def _others_work():
    """Whether another thread runs, or would if it had a processor. One that waits for the interpreter's lock gets it while
    this one sleeps."""
    import os
    for thread in os.listdir('/proc/self/task'):
        try:
            with open('/proc/self/task/%s/stat' % thread) as file:
                state = file.read().rpartition(')')[2].split()[0]
        except OSError:
            continue
        if state in 'RD' and thread != str(_thread_id()):
            return True
    return False


def _thread_id():
    import _thread
    return _thread.get_native_id()


def _let_threads_finish():
    import time
    quiet, end = 0, time.monotonic() + _AT_MOST
    while quiet < _QUIET_LOOKS and time.monotonic() < end:
        time.sleep(_LOOK)
        quiet = 0 if _others_work() else quiet + 1


def watch(distributed):
    """Of the module torch.distributed.distributed_c10d."""
    import functools
    plain = distributed.init_process_group
    begun = []

    @functools.wraps(plain)
    def init_process_group(*arguments, **keywords):
        result = plain(*arguments, **keywords)
        if not begun:
            import atexit
            begun.append(atexit.register(_let_threads_finish))
        return result

    distributed.init_process_group = init_process_group
