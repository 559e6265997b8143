"""Trains a small network with PyTorch's ZeroRedundancyOptimizer around Adam, over DistributedDataParallel, on two Gloo
processes, and writes down the initial parameters, each rank's batches and the parameters after the last step. Files are
raw little-endian float32.

usage: zero_reference.py OUTPUT_DIRECTORY
"""

import sys

import torch
import torch.nn as nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from reference import join, leave, run, train_small


def wrap(net):
    model = DistributedDataParallel(net)
    return model, ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.Adam, lr=0.01)


def train(rank, directory):
    join(rank, directory)
    torch.manual_seed(7)
    net = nn.Sequential(nn.Linear(12, 24), nn.Tanh(), nn.Linear(24, 16), nn.Tanh(), nn.Linear(16, 1))
    train_small(rank, directory, net, wrap)
    leave()


if __name__ == "__main__":
    sys.exit(0 if run(lambda rank: train(rank, sys.argv[1])) else 1)
