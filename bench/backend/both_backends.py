"""The backends "cadre" and "gloo" of torch.distributed in the same processes, in turn, round by round.

Prints a line of JSON on rank 0: medians over the rounds, of an all-reduce in microseconds by its bytes, and of a DDP step in milliseconds.

usage: both_backends.py ROUNDS
"""
import json
import sys
import time

import cadre.torch_backend  # noqa: F401: as PyTorch without entry points needs it
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

SIZES = ((4 << 10, 200), (1 << 20, 40), (25 << 20, 3))  # bytes, and calls in a round


def median(values):
    return sorted(values)[len(values) // 2]


def all_reduces(groups, size, calls, rounds):
    data, times = torch.zeros(size // 4), {name: [] for name in groups}
    for group in groups.values():
        for _ in range(max(3, calls // 4)):
            dist.all_reduce(data, group=group)
    for _ in range(rounds):
        for name, group in groups.items():
            dist.all_reduce(data, group=group)  # which finds the caches as the other left them
            dist.barrier()
            begin = time.perf_counter()
            for _ in range(calls):
                dist.all_reduce(data, group=group)
            times[name].append((time.perf_counter() - begin) / calls * 1e6)
    return {name: median(each) for name, each in times.items()}


def steps(groups, rounds):
    """Six layers of 2048, as bench/training's MLP: 100 MiB of gradients in buckets of 25."""
    batch, models = torch.randn(32, 2048), {}
    for name, group in groups.items():
        torch.manual_seed(1)
        layers = [layer for _ in range(6) for layer in (nn.Linear(2048, 2048), nn.ReLU())]
        model = DistributedDataParallel(nn.Sequential(*layers[:-1]), process_group=group, gradient_as_bucket_view=True)
        models[name] = model, torch.optim.SGD(model.parameters(), lr=1e-3)
    times = {name: [] for name in groups}
    for step in range(3 + rounds):
        for name, (model, optimizer) in models.items():
            dist.barrier()
            begin = time.perf_counter()
            optimizer.zero_grad(set_to_none=False)
            model(batch).pow(2).mean().backward()
            optimizer.step()
            if step >= 3:
                times[name].append((time.perf_counter() - begin) * 1e3)
    return {name: median(each) for name, each in times.items()}


def main():
    rounds = int(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group("cadre")
    groups = {"cadre": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}
    figures = {str(size): all_reduces(groups, size, calls, rounds) for size, calls in SIZES}
    figures["step"] = steps(groups, rounds)
    if dist.get_rank() == 0:
        print("figures " + json.dumps(figures), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
