"""Trains a small network with PyTorch's DistributedDataParallel on two Gloo processes, with one of its communication
hooks, and writes down what a second implementation needs to do the same: the initial parameters, every batch, and the
parameters after each step. Files are raw little-endian float32 (int64 for labels).

Gloo has no bfloat16, so for bf16 the hook sends what PyTorch's bf16_compress_hook would as bytes and adds it itself.

usage: ddp_hooks_reference.py fp32|fp16|bf16 OUTPUT_DIRECTORY
"""

import datetime
import os
import sys
import traceback

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

WORLD_SIZE = 2
STEPS = 50
BATCH = 16
INPUTS, HIDDEN, CLASSES = 20, 64, 5


def write(file, tensors):
    for tensor in tensors:
        file.write(tensor.detach().contiguous().numpy().tobytes())


def bf16_hook(group, bucket):
    mine = bucket.buffer().to(torch.bfloat16).div_(WORLD_SIZE)
    parts = [torch.empty_like(mine).view(torch.uint8) for _ in range(WORLD_SIZE)]
    dist.all_gather(parts, mine.view(torch.uint8))
    total = sum(part.view(torch.bfloat16) for part in parts)
    bucket.buffer().copy_(total)
    future = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


HOOKS = {"fp32": None, "fp16": default_hooks.fp16_compress_hook, "bf16": bf16_hook}


def train(rank, way, directory):
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method="file://" + os.path.join(directory, "rendezvous_" + way),
        rank=rank,
        world_size=WORLD_SIZE,
        timeout=datetime.timedelta(seconds=60),
    )
    torch.manual_seed(11)
    net = nn.Sequential(nn.Linear(INPUTS, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES))
    if rank == 0:
        with open(os.path.join(directory, "initial"), "wb") as file:
            write(file, net.parameters())
    model = DistributedDataParallel(net)
    if HOOKS[way] is not None:
        model.register_comm_hook(None, HOOKS[way])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    data = torch.Generator().manual_seed(100 + rank)
    path = os.path.join(directory, f"batches_{rank}")
    with open(path, "wb") as batches, open(os.path.join(directory, f"parameters_{way}_{rank}"), "wb") as parameters:
        for _ in range(STEPS):
            inputs = torch.randn(BATCH, INPUTS, generator=data)
            labels = torch.randint(CLASSES, (BATCH,), generator=data)
            write(batches, [inputs, labels])
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
            write(parameters, net.parameters())
    # Nothing is torn down: with a Python hook that can wait for ever.
    dist.barrier()


def main():
    way, directory = sys.argv[1], sys.argv[2]
    children = []
    for rank in range(WORLD_SIZE):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                train(rank, way, directory)
                status = 0
            except Exception:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(status)
        children.append(child)
    failed = [pid for pid in children if os.waitpid(pid, 0)[1] != 0]
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
