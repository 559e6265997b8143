"""Trains a small network with PyTorch's DistributedDataParallel on two Gloo processes and writes down everything that a
second implementation needs to do the same: the initial parameters, each rank's batches, the averaged gradients of
each step, and the parameters after the last. Files are raw little-endian float32 (int64 for labels).

usage: ddp_reference.py OUTPUT_DIRECTORY
"""

import datetime
import os
import sys

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

WORLD_SIZE = 2
STEPS = 50
BATCH = 32


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 20, 5)
        self.conv2 = nn.Conv2d(20, 50, 5)
        self.fc1 = nn.Linear(4 * 4 * 50, 500)
        self.fc2 = nn.Linear(500, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.fc2(F.relu(self.fc1(x.flatten(1))))


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
    net = Net()
    if rank == 0:
        write(directory, "initial", net.parameters())
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    data = torch.Generator().manual_seed(1000 + rank)
    for step in range(STEPS):
        images = torch.randn(BATCH, 1, 28, 28, generator=data)
        labels = torch.randint(10, (BATCH,), generator=data)
        write(directory, f"images_{step}_{rank}", [images])
        write(directory, f"labels_{step}_{rank}", [labels])
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        if rank == 0:
            write(directory, f"gradients_{step}", [p.grad for p in net.parameters()])
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
