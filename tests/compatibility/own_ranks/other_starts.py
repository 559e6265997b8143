#!/usr/bin/env python3
"""Other ways in which a worker comes to have ranks below it.

usage: other_starts.py WHAT

  pool      a ProcessPoolExecutor whose processes are ranks that meet at a port which the worker chose
  torchrun  torchrun as a subprocess
  wrapper   the worker's own rank, by a script that the worker only starts
  watched   the same, in a process of multiprocessing's
"""

import multiprocessing
import os
import socket
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor


def train(rank=None, world_size=None, port=None):
    import torch
    import torch.distributed as dist

    if rank is None:
        dist.init_process_group("gloo")
    else:
        os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=str(port))
        dist.init_process_group("gloo", rank=rank, world_size=world_size)
    total = torch.ones(1)
    dist.all_reduce(total)
    print(f"trained: rank {dist.get_rank()} of {int(total.item())}", flush=True)
    dist.destroy_process_group()


def pool():
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as executor:
        for future in [executor.submit(train, rank, 2, port) for rank in range(2)]:
            future.result()


def torchrun():
    program = os.path.join(os.path.dirname(sys.executable), "torchrun")
    subprocess.run([program, "--standalone", "--nproc-per-node", "2", __file__, "rank"], check=True)


def wrapper():
    subprocess.run([sys.executable, __file__, "rank"], env=dict(os.environ, OWN="1"), check=True)


def watched():
    process = multiprocessing.get_context("spawn").Process(target=train)
    process.start()
    process.join()
    raise SystemExit(process.exitcode)


if __name__ == "__main__":
    {"pool": pool, "torchrun": torchrun, "wrapper": wrapper, "watched": watched, "rank": train}[sys.argv[1]]()
