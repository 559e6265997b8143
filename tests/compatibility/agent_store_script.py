#!/usr/bin/env python3
"""What programs do with PyTorch's store beside init_process_group("gloo"), one at a time.

usage: agent_store_script.py WHAT

  address   init_method="tcp://MASTER_ADDR:another port"
  own       a TCPStore of the program's own at another port, and one that is to serve at MASTER_PORT
  dies      rank 0 ends by SIGKILL while all others wait for a rank that never comes
  handles   the same with a handler of SIGTERM
  plain     init_process_group alone
"""

import os
import signal
import sys
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
ADDRESS, PORT = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
USES = "CADRE_TORCH_STORE" in os.environ


def client():
    return dist.TCPStore(ADDRESS, PORT, is_master=False, timeout=timedelta(seconds=60), wait_for_workers=False)


def reduces():
    total = torch.ones(1)
    dist.all_reduce(total)
    dist.barrier()
    dist.destroy_process_group()
    print(f"rank {RANK} of {WORLD}: sum {int(total.item())}, agent store {USES}", flush=True)


def another_port():
    """The same on all ranks."""
    store = client()
    if RANK == 0:
        import socket

        with socket.socket() as free:
            free.bind((ADDRESS, 0))
            store.set("port", str(free.getsockname()[1]))
    return int(store.get("port"))


def address():
    dist.init_process_group("gloo", init_method=f"tcp://{ADDRESS}:{another_port()}", rank=RANK, world_size=WORLD)
    reduces()


def own():
    store = dist.TCPStore(ADDRESS, another_port(), WORLD, RANK == 0, timedelta(seconds=60))
    store.set(f"{RANK}", "here")
    store.wait([str(rank) for rank in range(WORLD)])
    # The port is the agent's: this one becomes its client.
    forgiven = dist.TCPStore(ADDRESS, PORT, WORLD, RANK == 0, timedelta(seconds=60))
    forgiven.barrier("own", WORLD, timedelta(seconds=60))
    dist.init_process_group("gloo", store=store, rank=RANK, world_size=WORLD)
    reduces()


def kill_when_inside(store, keys):
    while store.num_keys() <= keys:
        time.sleep(0.01)
    print(f"rank 0 of generation {os.environ['CADRE_GENERATION']} dies", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


def dies():
    store = client()
    if RANK != 0:
        store.set(f"here {RANK}", "")
    if RANK == WORLD - 1:
        print("rank waits elsewhere", flush=True)
        store.wait(["never"], timedelta(minutes=30))
    if RANK == 0:
        store.wait([f"here {rank}" for rank in range(1, WORLD)])
        killer = threading.Thread(target=kill_when_inside, args=(client(), store.num_keys()))
        killer.start()
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    reduces()


def handles():
    signal.signal(signal.SIGTERM, lambda *_: print(f"rank {RANK} handles SIGTERM", flush=True))
    try:
        dies()
    finally:
        print(f"rank {RANK} is told that it waits in vain", flush=True)


def plain():
    dist.init_process_group("gloo")
    reduces()


if __name__ == "__main__":
    {"address": address, "own": own, "dies": dies, "handles": handles, "plain": plain}[sys.argv[1]]()
