"""Trains a small network of two units with PyTorch's FSDP2 (fully_shard) and Adam, on two Gloo processes, and writes
down the initial parameters, each rank's batches and the parameters after the last step. Files are raw little-endian
float32.

usage: fsdp_reference.py OUTPUT_DIRECTORY
"""

import sys

import torch
import torch.nn as nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from reference import WORLD_SIZE, join, leave, run, train_small


def wrap(net):
    mesh = init_device_mesh("cpu", (WORLD_SIZE,))
    for unit in (net[1], net[2], net):
        fully_shard(unit, mesh=mesh)
    return net, torch.optim.Adam(net.parameters(), lr=0.01)


def train(rank, directory):
    join(rank, directory)
    torch.manual_seed(7)
    net = nn.Sequential(
        nn.Linear(12, 24),
        nn.Sequential(nn.Tanh(), nn.Linear(24, 16)),
        nn.Sequential(nn.Tanh(), nn.Linear(16, 16)),
        nn.Linear(16, 1),
    )
    train_small(rank, directory, net, wrap, whole=lambda parameter: parameter.full_tensor())
    leave()


if __name__ == "__main__":
    sys.exit(0 if run(lambda rank: train(rank, sys.argv[1])) else 1)
