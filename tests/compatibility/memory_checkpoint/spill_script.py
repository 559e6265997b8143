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

RANK = int(os.environ["RANK"])
REPLICATED, STEPS, DIE_AT, DIRECTORY = sys.argv[1] == "replicated", int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]


def await_whole_step():
    """Of the states in the directory: it is written behind the training."""
    wanted = 1 if REPLICATED else dist.get_world_size()
    deadline = time.monotonic() + 60
    while not any(len(glob.glob(step + "/rank-*")) == wanted for step in glob.glob(DIRECTORY + "/step_*")):
        assert time.monotonic() < deadline, os.listdir(DIRECTORY)
        time.sleep(0.01)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(256, 1))
    optimizer = torch.optim.Adam(model.parameters())
    cadre.checkpoint.spill(DIRECTORY, every=0)
    state, last = cadre.checkpoint.latest(replicated=REPLICATED)
    if state is not None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        print(f"rank {RANK} goes on behind step {last} of rank {state['rank']}", flush=True)
    for step in range(last + 1, STEPS):
        generator = torch.Generator().manual_seed(step)
        optimizer.zero_grad()
        model(torch.randn(16, 256, generator=generator)).pow(2).mean().backward()
        optimizer.step()
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "rank": RANK}
        cadre.checkpoint.save(state, step, replicated=REPLICATED)
        if step == DIE_AT and RANK == 1:
            await_whole_step()
            kill_node()
    cadre.checkpoint.wait()
    total = sum(value.double().sum().item() for value in model.state_dict().values())
    print(f"rank {RANK} ends with {total:.12f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
