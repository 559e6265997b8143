"""Trains a small network with PyTorch's torch.amp.GradScaler and Adam, over DistributedDataParallel, on two Gloo processes,
from a scale that overflows and with losses that do, and writes down the initial parameters, each rank's batches, the scale
after each step and the parameters after the last one. Files are raw little-endian float32.

usage: grad_scaler_reference.py OUTPUT_DIRECTORY
"""

import sys

import torch
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel

from reference import SMALL_BATCH, STEPS, join, leave, run, write

# As in grad_scaler_test.cc.
GROWTH_INTERVAL = 4
OVERFLOWS = {(13, 0), (14, 1), (21, 1)}


def train(rank, directory):
    join(rank, directory)
    torch.manual_seed(7)
    net = nn.Sequential(nn.Linear(12, 24), nn.Tanh(), nn.Linear(24, 16), nn.Tanh(), nn.Linear(16, 1))
    if rank == 0:
        write(directory, "initial", net.parameters())
    model = DistributedDataParallel(net)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, growth_interval=GROWTH_INTERVAL)
    data = torch.Generator().manual_seed(1000 + rank)
    scales = []
    for step in range(STEPS):
        inputs = torch.randn(SMALL_BATCH, 12, generator=data)
        write(directory, f"inputs_{step}_{rank}", [inputs])
        optimizer.zero_grad()
        loss = model(inputs).pow(2).mean()
        if (step, rank) in OVERFLOWS:
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    if rank == 0:
        write(directory, "scales", [torch.tensor(scales, dtype=torch.float32)])
        write(directory, "final", net.parameters())
    leave()


if __name__ == "__main__":
    sys.exit(0 if run(lambda rank: train(rank, sys.argv[1])) else 1)
