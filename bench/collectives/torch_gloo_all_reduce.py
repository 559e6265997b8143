"""PyTorch's all-reduce over Gloo, measured as schedule.h measures. Prints "BYTES MICROSECONDS" a line.

Arguments: ranks, schedule; to be one rank of them, its number and a file for the ranks to meet in.
"""

import datetime
import os
import sys
import tempfile
import time

import torch
import torch.distributed as dist

TIMEOUT = datetime.timedelta(minutes=2)


def run_rank(rank, ranks, schedule, store):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=ranks, timeout=TIMEOUT)
    for size, warm_up, rounds, iterations in schedule:
        data = torch.zeros(size // 4)
        for _ in range(warm_up):
            dist.all_reduce(data)
        times = []
        for _ in range(rounds):
            dist.barrier()
            start = time.perf_counter()
            for _ in range(iterations):
                dist.all_reduce(data)
            times.append((time.perf_counter() - start) * 1e6 / iterations)
        if rank == 0:
            print(size, "%.3f" % sorted(times)[rounds // 2], flush=True)
    dist.barrier()


def main():
    ranks = int(sys.argv[1])
    schedule = [tuple(int(part) for part in one.split(":")) for one in sys.argv[2].split(",")]
    if len(sys.argv) > 3:
        run_rank(int(sys.argv[3]), ranks, schedule, sys.argv[4])
        return
    with tempfile.TemporaryDirectory() as folder:
        children = []
        for rank in range(ranks):
            child = os.fork()
            if child == 0:
                run_rank(rank, ranks, schedule, os.path.join(folder, "store"))
                sys.stdout.flush()
                os._exit(0)
            children.append(child)
        failed = [child for child in children if os.waitpid(child, 0)[1] != 0]
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
