"""Trains a small network with PyTorch's ZeroRedundancyOptimizer around Adam, over DistributedDataParallel, on two Gloo
processes, and writes down the initial parameters, each rank's batches and the parameters after the last step. Files are
raw little-endian float32.

usage: zero_reference.py OUTPUT_DIRECTORY
"""

import datetime
import os
import sys

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

WORLD_SIZE = 2
STEPS = 50
BATCH = 8


def write(directory, name, tensors):
    with open(os.path.join(directory, name), "wb") as file:
        for tensor in tensors:
            file.write(tensor.detach().contiguous().numpy().tobytes())


def train(rank, directory):
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method="file://" + os.path.join(directory, "rendezvous"),
        rank=rank,
        world_size=WORLD_SIZE,
        timeout=datetime.timedelta(seconds=60),
    )
    torch.manual_seed(7)
    net = nn.Sequential(nn.Linear(12, 24), nn.Tanh(), nn.Linear(24, 16), nn.Tanh(), nn.Linear(16, 1))
    if rank == 0:
        write(directory, "initial", net.parameters())
    model = DistributedDataParallel(net)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.Adam, lr=0.01)
    data = torch.Generator().manual_seed(1000 + rank)
    for step in range(STEPS):
        inputs = torch.randn(BATCH, 12, generator=data)
        write(directory, f"inputs_{step}_{rank}", [inputs])
        optimizer.zero_grad()
        model(inputs).pow(2).mean().backward()
        optimizer.step()
    if rank == 0:
        write(directory, "final", net.parameters())
    dist.barrier()
    dist.destroy_process_group()


def main():
    directory = sys.argv[1]
    children = []
    for rank in range(WORLD_SIZE):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                train(rank, directory)
                status = 0
            finally:
                sys.stderr.flush()
                os._exit(status)
        children.append(child)
    failed = [pid for pid in children if os.waitpid(pid, 0)[1] != 0]
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
