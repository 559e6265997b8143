#!/usr/bin/env python3
"""Ranks of an ordinary program: rank 1 waits in its own code, the others for it in all_reduce. Once PIPE is written to all go on.

usage: python_stacks.py PIPE
"""

import sys

import torch
import torch.distributed as dist


def wait_for(pipe):
    open(pipe).read()  # the odd one


def main():
    dist.init_process_group("gloo")
    one = torch.ones(1)
    if dist.get_rank() == 1:
        wait_for(sys.argv[1])
    dist.all_reduce(one)  # the others
    assert one.item() == dist.get_world_size(), one
    print(f"rank {dist.get_rank()} is done", flush=True)
    dist.destroy_process_group()


main()
