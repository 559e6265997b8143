#!/usr/bin/env python3
"""Three ranks of an ordinary program, of which rank 1 hangs after its first step in one of several ways.

usage: python_hangs.py WAY
"""

import os
import sys
import threading
import time

import torch
import torch.distributed as dist

WAY, RANK, PAIR = sys.argv[1], int(os.environ["RANK"]), []


class Samples(torch.utils.data.Dataset):
    def __len__(self):
        return 100

    def __getitem__(self, index):
        if WAY == "loader" and RANK == 1 and index == 4:
            time.sleep(1000)  # in the loader
        return torch.ones(2)


def lock():
    one = threading.Lock()
    one.acquire()
    one.acquire()  # the lock


def endless():
    while True:
        pass  # the loop


def native():
    pow(7, 10**9)  # C code that holds the interpreter's lock


def skip():
    dist.barrier()  # another collective


def reduces(batch, step):
    if WAY == "shape" and RANK == 1 and step == 1:
        batch = torch.ones(1)
    if WAY == "abort" and step == 1:
        batch = torch.ones(50 if RANK == 1 else 100)
    dist.all_reduce(batch)  # the shapes
    return batch


def hang():
    if WAY in globals() and RANK == 1:
        globals()[WAY]()
    # A control: all are slow alike.
    if WAY == "slow":
        time.sleep(1000)
    # Rank 1 leaves out what only rank 0 and it are to call.
    if WAY == "group" and RANK == 0:
        dist.all_reduce(torch.ones(4), group=PAIR[0])


def main():
    from datetime import timedelta  # here, since lines above are named in tests

    dist.init_process_group("gloo", timeout=timedelta(seconds=int(os.environ.get("GLOO_TIMEOUT", "1800"))))
    PAIR.append(dist.new_group([0, 1]))
    loader = torch.utils.data.DataLoader(Samples(), batch_size=2, num_workers=1 if WAY == "loader" else 0)
    for step, batch in enumerate(loader):
        if step == 1:
            # From here on time is counted: how long the imports take does not matter.
            open(os.environ["CADRE_PROGRESS_FILE"], "w").close()
            hang()
        reduces(batch, step).sum().item()


main()
