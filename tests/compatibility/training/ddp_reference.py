"""Trains a small network with PyTorch's DistributedDataParallel on two Gloo processes and writes down everything that a
second implementation needs to do the same: the initial parameters, each rank's batches, the averaged gradients of
each step, and the parameters after the last. Files are raw little-endian float32 (int64 for labels).

usage: ddp_reference.py OUTPUT_DIRECTORY
"""

import sys

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

from reference import STEPS, join, leave, run, write

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


def train(rank, directory):
    join(rank, directory)
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
    leave()


if __name__ == "__main__":
    sys.exit(0 if run(lambda rank: train(rank, sys.argv[1])) else 1)
