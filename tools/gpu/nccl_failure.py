"""Two ranks sum without end; rank 1 is killed, or stopped, in the midst of it, once. Started again, they finish.

usage: cadre run --nproc-per-node 2 ... nccl_failure.py killed|stopped BACKEND RESULT
"""

import json
import os
import signal
import sys
import threading
import time

import torch
import torch.distributed as dist

SIGNALS = {"killed": signal.SIGKILL, "stopped": signal.SIGSTOP}
# Long enough that a rank is in a collective nearly always.
ELEMENTS = {"nccl": 1 << 24, "gloo": 1 << 20}
STEPS_AFTERWARDS = 20
SECONDS_UNTIL = 1


def fail(way, result):
    with open(result + ".when", "w", encoding="utf-8") as file:
        file.write(repr(time.time()))
    os.kill(os.getpid(), SIGNALS[way])


def main():
    way, backend, result = sys.argv[1:]
    rank, first = int(os.environ["RANK"]), os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
    device = torch.device("cpu")
    if backend == "nccl":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        torch.cuda.set_device(device)
    dist.init_process_group(backend)
    values = torch.empty(ELEMENTS[backend], device=device)
    step = 0
    while first or step < STEPS_AFTERWARDS:
        values.fill_(1)
        dist.all_reduce(values)
        if values[-1].item() != dist.get_world_size():
            sys.exit("a wrong sum: %g" % values[-1].item())
        # From here on a rank that stands still is noticed.
        os.utime(os.environ["CADRE_PROGRESS_FILE"]) if step else open(os.environ["CADRE_PROGRESS_FILE"], "w").close()
        if step == 0 and first and rank == 1:
            threading.Timer(SECONDS_UNTIL, fail, (way, result)).start()
        if step == 0 and not first and rank == 0:
            with open(result + ".when", encoding="utf-8") as file:
                took = time.time() - float(file.read())
        step += 1
    if rank == 0:
        with open(result, "w", encoding="utf-8") as file:
            json.dump({"seconds_to_next_sum": took}, file)
    dist.destroy_process_group()
    # The interpreter's own end shows no progress, and takes seconds on a machine that has other things to do.
    os._exit(0)


if __name__ == "__main__":
    main()
