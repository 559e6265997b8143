"""A training with cadre.checkpoint in every step, whose ranks all have the same parameters."""

import os

import torch

import cadre

RANK = int(os.environ["RANK"])


def train(layers, steps, replicated, after_step):
    """From where the checkpoint says to the last step; gives the model."""
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.Adam(model.parameters())
    state, last = cadre.checkpoint.latest()
    if state is not None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        print(f"rank {RANK} goes on behind step {last} of rank {state['rank']}", flush=True)
    for step in range(last + 1, steps):
        generator = torch.Generator().manual_seed(step)
        optimizer.zero_grad()
        model(torch.randn(16, 256, generator=generator)).pow(2).mean().backward()
        optimizer.step()
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "rank": RANK}
        cadre.checkpoint.save(state, step, replicated=replicated)
        after_step(step)
    cadre.checkpoint.wait()
    return model


def tell_end(model):
    """Two trainings that went the same way end with the same number."""
    total = sum(value.double().sum().item() for value in model.state_dict().values())
    print(f"rank {RANK} ends with {total:.12f}", flush=True)
