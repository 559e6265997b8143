#!/usr/bin/env python3
"""In the manner of FairScale's tutorial: spawned ranks that meet at an address which the program names as a URL.

usage: fairscale_tutorial.py
"""

import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

WORLD_SIZE, EPOCHS = 2, 2


def train(rank, world_size, epochs):
    url = f"tcp://localhost:{os.environ.get('TUTORIAL_PORT', '29501')}"
    dist.init_process_group(backend="gloo", init_method=url, rank=rank, world_size=world_size)
    model = DDP(nn.Linear(16, 4))
    optimizer = torch.optim.SGD(params=model.parameters(), lr=1e-3, momentum=0.9)
    for _ in range(epochs):
        optimizer.zero_grad()
        model(torch.randn(8, 16)).sum().backward()
        optimizer.step()
    print(f"trained: rank {dist.get_rank()} of {dist.get_world_size()}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(train, args=(WORLD_SIZE, EPOCHS), nprocs=WORLD_SIZE, join=True)
