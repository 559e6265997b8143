#!/usr/bin/env python3
"""In the manner of PyTorch's ImageNet example: one rank by itself, one for each process that was started, or as many
for each process as the node has devices.

usage: imagenet_template.py [--multiprocessing-distributed] [--dist-url URL] [--world-size N] [--rank N]
"""

import argparse
import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

DEVICES = 2


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--world-size", default=-1, type=int)
    parser.add_argument("--rank", default=-1, type=int)
    parser.add_argument("--dist-url", default="env://")
    parser.add_argument("--dist-backend", default="gloo")
    parser.add_argument("--multiprocessing-distributed", action="store_true")
    return parser.parse_args()


def main():
    args = parse()
    if args.dist_url == "env://" and args.world_size == -1:
        args.world_size = int(os.environ.get("WORLD_SIZE", 1))
    args.distributed = args.world_size > 1 or args.multiprocessing_distributed
    if args.multiprocessing_distributed:
        args.world_size = DEVICES * args.world_size
        mp.spawn(main_worker, nprocs=DEVICES, args=(args,))
    else:
        main_worker(None, args)


def main_worker(device, args):
    if args.distributed:
        if args.dist_url == "env://" and args.rank == -1:
            args.rank = int(os.environ["RANK"])
        if args.multiprocessing_distributed:
            args.rank = args.rank * DEVICES + device
        dist.init_process_group(
            backend=args.dist_backend, init_method=args.dist_url, world_size=args.world_size, rank=args.rank
        )
    model = nn.Linear(8, 2)
    if args.distributed:
        model = DDP(model)
    nn.CrossEntropyLoss()(model(torch.randn(4, 8)), torch.zeros(4, dtype=torch.long)).backward()
    rank, world = (dist.get_rank(), dist.get_world_size()) if args.distributed else (0, 1)
    print(f"trained: rank {rank} of {world}", flush=True)
    if args.distributed:
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
