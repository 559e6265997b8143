#!/usr/bin/env python3
"""A training script as people write them for srun: rank, local rank and world size from Slurm's variables, rank 0's
address from SLURM_SRUN_COMM_HOST, the batch divided by the world size, a checkpoint each epoch by rank 0. It knows
nothing of Cadre.

usage: slurm_script.py CHECKPOINT_FILE [EPOCHS]
"""

import os
import sys
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

BATCH_SIZE = 64


def make_data():
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(512, 10, generator=generator)
    return TensorDataset(inputs, inputs @ torch.randn(10, 1, generator=generator))


def main():
    checkpoint = sys.argv[1]
    epochs = int(sys.argv[2]) if len(sys.argv) > 2 else 2
    rank = int(os.environ["SLURM_PROCID"])
    local_rank = int(os.environ["SLURM_LOCALID"])
    world_size = int(os.environ["SLURM_NTASKS"])
    node = int(os.environ["SLURM_NODEID"])
    host = os.environ["SLURM_SRUN_COMM_HOST"]
    port = 20000 + int(os.environ["SLURM_JOB_ID"]) % 10000
    dist.init_process_group("gloo", init_method=f"tcp://{host}:{port}", rank=rank, world_size=world_size)
    print(f"rank {rank} of {world_size}, node {node}, local rank {local_rank}", flush=True)

    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = DDP(nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loss_function = nn.MSELoss()
    data = make_data()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=BATCH_SIZE // world_size, sampler=sampler)

    start = time.time()
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = loss_function(model(inputs), targets)
            loss.backward()
            optimizer.step()
        total = loss.detach()
        dist.all_reduce(total)
        if rank == 0:
            print(f"epoch {epoch} loss {total.item() / world_size:.6f}", flush=True)
            torch.save(model.state_dict(), checkpoint)
        dist.barrier()
    if rank == 0:
        print(f"total time {time.time() - start:.1f} s", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
