"""Trains a small network of two units with PyTorch's FSDP2 (fully_shard) and Adam, on two Gloo processes, and writes
down the initial parameters, each rank's batches and the parameters after the last step. Files are raw little-endian
float32.

usage: fsdp_reference.py OUTPUT_DIRECTORY
"""

import datetime
import os
import sys

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

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
    net = nn.Sequential(
        nn.Linear(12, 24),
        nn.Sequential(nn.Tanh(), nn.Linear(24, 16)),
        nn.Sequential(nn.Tanh(), nn.Linear(16, 16)),
        nn.Linear(16, 1),
    )
    if rank == 0:
        write(directory, "initial", net.parameters())
    mesh = init_device_mesh("cpu", (WORLD_SIZE,))
    for unit in (net[1], net[2], net):
        fully_shard(unit, mesh=mesh)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    data = torch.Generator().manual_seed(1000 + rank)
    for step in range(STEPS):
        inputs = torch.randn(BATCH, 12, generator=data)
        write(directory, f"inputs_{step}_{rank}", [inputs])
        optimizer.zero_grad()
        net(inputs).pow(2).mean().backward()
        optimizer.step()
    final = [parameter.full_tensor() for parameter in net.parameters()]
    if rank == 0:
        write(directory, "final", final)
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
