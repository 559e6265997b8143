#!/usr/bin/env python3
"""Two ranks of an ordinary program, of which rank 1 fails after its first step in one of several ways.

usage: python_failures.py WAY
"""

import ctypes
import os
import signal
import sys
import time

import torch
import torch.distributed as dist

WAY, RANK = sys.argv[1], int(os.environ["RANK"])
PIDS = torch.zeros(2, dtype=torch.int64)


class Samples(torch.utils.data.Dataset):
    def __len__(self):
        return 100

    def __getitem__(self, index):
        if RANK == 1 and index == 5 and WAY == "loader_raises":
            raise ValueError("no sample 5")  # in the loader
        # Before its first batch, so that it does not end in the middle of handing one over.
        if RANK == 1 and index == 1 and WAY == "loader_is_killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if RANK == 1 and index == 1 and WAY == "loader_runs_out":
            eat()
        return torch.ones(2)


def eat():
    eaten = []
    while True:
        eaten.append(bytearray(b"x" * (64 << 20)))


def fail():
    raise ValueError("no sample 17")


# The other one sees it gone, and ends before it does.
def late():
    try:
        fail()
    finally:
        dist.destroy_process_group()
        while os.path.exists("/proc/%d" % PIDS[0]):
            time.sleep(0.01)


# And it does not end at all.
def goes_on():
    dist.destroy_process_group()
    time.sleep(1000)  # without the others


def exits():
    dist.destroy_process_group()
    sys.exit("there is no data in /data")


def ends_itself():
    dist.destroy_process_group()
    sys.exit(3)  # without a word


def segfault():
    ctypes.string_at(0)


# Hundreds of lines after the exception's own.
def parameters():
    def layers(names):
        return torch.nn.ModuleDict({name: torch.nn.Linear(2, 2) for name in names})

    state = layers("a_layer_with_quite_a_long_name_%d" % i for i in range(200)).state_dict()
    layers(["other"]).load_state_dict(state)  # of another model


# In order, while the other goes on.
def leaves():
    dist.destroy_process_group()
    sys.exit(0)


def device_memory():
    raise torch.OutOfMemoryError(
        "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 79.11 GiB of which 5.44 GiB "
        "is free. Including non-PyTorch memory, this process has 73.66 GiB memory in use."
    )


def memory():
    eat()


# Its child, in a session of its own, outlives it.
def forks():
    if os.fork() == 0:
        os.setsid()
        open(sys.argv[2], "w").write(str(os.getpid()))
        time.sleep(1000)
    while not os.path.exists(sys.argv[2]) or not open(sys.argv[2]).read():
        time.sleep(0.01)
    fail()


# The kernel may kill a second process while the first is slow to end, and it is not to be rank 0.
def leave_the_limit():
    with open(os.environ["CADRE_UNLIMITED_GROUP"] + "/cgroup.procs", "w") as processes:
        processes.write(str(os.getpid()))


def main():
    if RANK == 0 and WAY in ("memory", "loader_runs_out"):
        leave_the_limit()
    dist.init_process_group("gloo")
    PIDS[RANK] = os.getpid()
    dist.all_reduce(PIDS)
    loader = torch.utils.data.DataLoader(Samples(), batch_size=2, num_workers=1 if WAY.startswith("loader") else 0)
    for step, batch in enumerate(loader):
        if step == 1 and RANK == 1 and WAY in globals():
            globals()[WAY]()
        dist.all_reduce(batch)


main()
