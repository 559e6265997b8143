"""Trains with cadre.checkpoint in every step, which also goes to a directory; the whole job may be killed once.

usage: spill_script.py replicated|own STEPS DIE_AT DIRECTORY
"""

import glob
import os
import sys
import time

import torch
import torch.distributed as dist

import cadre
from kill_node import kill_node
from training import RANK, tell_end, train

REPLICATED, STEPS, DIE_AT, DIRECTORY = sys.argv[1] == "replicated", int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]


def await_whole_step():
    """Of the states in the directory: it is written behind the training."""
    wanted = 1 if REPLICATED else dist.get_world_size()
    deadline = time.monotonic() + 60
    while not any(len(glob.glob(step + "/rank-*")) == wanted for step in glob.glob(DIRECTORY + "/step_*")):
        assert time.monotonic() < deadline, os.listdir(DIRECTORY)
        time.sleep(0.01)


def die(step):
    if step == DIE_AT and RANK == 1:
        await_whole_step()
        kill_node()


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    cadre.checkpoint.spill(DIRECTORY, every=0)
    tell_end(train([torch.nn.Linear(256, 1)], STEPS, REPLICATED, die))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
