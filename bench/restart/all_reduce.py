#!/usr/bin/env python3
"""Ranks that sum a number again and again, and write down when: a line "seconds pid" each time, in FOLDER/rank_<r>.

usage: all_reduce.py FOLDER
"""

import os
import sys
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
number = torch.ones(1)
with open(f"{sys.argv[1]}/rank_{dist.get_rank()}", "a", buffering=1) as log:
    while True:
        dist.all_reduce(number)
        log.write(f"{time.clock_gettime(time.CLOCK_MONOTONIC):.4f} {os.getpid()}\n")
        time.sleep(0.01)
