#!/usr/bin/env python3
"""In the manner of PyTorch's DDP tutorial: the program spawns its ranks, each of which sets where they meet.

usage: ddp_tutorial.py
"""

import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


def setup(rank, world_size):
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = os.environ.get("TUTORIAL_PORT", "12355")
    dist.init_process_group("gloo", rank=rank, world_size=world_size)


def demo_basic(rank, world_size):
    setup(rank, world_size)
    torch.manual_seed(rank)
    model = DDP(nn.Sequential(nn.Linear(10, 10), nn.ReLU(), nn.Linear(10, 5)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    loss = nn.MSELoss()(model(torch.randn(20, 10)), torch.randn(20, 5))
    loss.backward()
    optimizer.step()
    total = torch.ones(1)
    dist.all_reduce(total)
    print(f"trained: rank {rank} of {int(total.item())}", flush=True)
    dist.destroy_process_group()
    if sys.flags.isolated:
        # Gloo's thread drops the tensor a moment later, and aborts an interpreter that ends meanwhile. Cadre makes
        # other interpreters wait for that thread, but cannot reach an isolated one, which therefore ends here without
        # running its finalization.
        os._exit(0)


if __name__ == "__main__":
    mp.spawn(demo_basic, args=(2,), nprocs=2, join=True)
