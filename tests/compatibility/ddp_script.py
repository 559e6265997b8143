#!/usr/bin/env python3
"""A training script as people write them for torchrun: LOCAL_RANK, init_process_group, DistributedDataParallel, a
checkpoint by rank 0, a barrier, and a load by everyone. It knows nothing of Cadre.

With DDP_SCRIPT_FAIL_RANK=r that rank kills itself in the middle of epoch 1 of the first attempt, so that the restart
can be seen.

usage: ddp_script.py CHECKPOINT_FILE [EPOCHS]
"""

import gc
import os
import signal
import sys

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def make_data():
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(512, 10, generator=generator)
    targets = inputs @ torch.randn(10, 1, generator=generator)
    return TensorDataset(inputs, targets)


def fail_on_purpose(rank):
    wanted = os.environ.get("DDP_SCRIPT_FAIL_RANK")
    if wanted is None or int(wanted) != rank:
        return
    if os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":
        os.kill(os.getpid(), signal.SIGKILL)


def main():
    checkpoint_path = sys.argv[1]
    epochs = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    local_rank = int(os.environ["LOCAL_RANK"])
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    print(f"rank {rank} of {world_size}, local rank {local_rank}, pid {os.getpid()}", flush=True)

    torch.manual_seed(rank)
    torch.set_num_threads(1)
    model = DDP(nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loss_function = nn.MSELoss()

    first_epoch = 0
    dist.barrier()
    if os.path.exists(checkpoint_path):
        checkpoint = torch.load(checkpoint_path, map_location="cpu")
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        first_epoch = checkpoint["epoch"] + 1
        if rank == 0:
            print(f"resumed from epoch {checkpoint['epoch']}", flush=True)

    data = make_data()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=32, sampler=sampler)
    for epoch in range(first_epoch, epochs):
        sampler.set_epoch(epoch)
        for step, (inputs, targets) in enumerate(loader):
            if epoch == 1 and step == 1:
                fail_on_purpose(rank)
            optimizer.zero_grad()
            loss = loss_function(model(inputs), targets)
            loss.backward()
            optimizer.step()
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.6f}", flush=True)
            temporary = checkpoint_path + ".tmp"
            torch.save(
                {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}, temporary
            )
            os.replace(temporary, checkpoint_path)
        dist.barrier()

    # Every rank must have the same parameters.
    flat = torch.cat([p.detach().flatten() for p in model.parameters()])
    gathered = [torch.empty_like(flat) for _ in range(world_size)]
    dist.all_gather(gathered, flat)
    if not all(torch.equal(flat, other) for other in gathered):
        sys.exit("parameters differ between ranks")
    if rank == 0:
        print(f"parameters equal on {world_size} ranks", flush=True)
    dist.barrier()
    # PyTorch 2.15 ends with SIGABRT now and then (4 of 100 runs of torchrun, too) where the model outlives its
    # process group: a thread of Gloo's lets go of a tensor when the interpreter has ended.
    del model
    gc.collect()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
