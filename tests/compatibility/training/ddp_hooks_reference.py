"""Trains a small network on two Gloo processes, with PyTorch's DistributedDataParallel and one of its communication
hooks, or in one of SINGA's ways as plain as they can be written, and writes down what a second implementation needs to do
the same: the initial parameters, every batch, and the parameters after each step. Files are raw little-endian float32
(int64 for labels).

Gloo of torch 1.13 has no bfloat16, so for bf16 the hook sends what PyTorch's bf16_compress_hook would as bytes and adds it
itself. PyTorch draws PowerSGD's first factors in a way of its own; here they are read from files.

usage: ddp_hooks_reference.py OUTPUT_DIRECTORY fp32|fp16|bf16|power_sgd|top_k|threshold|partial...
"""

import math
import os
import sys

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from reference import STEPS, WORLD_SIZE, join, run

BATCH = 16
INPUTS, HIDDEN, CLASSES = 20, 64, 5
# Each feature is half as large as the one before. With all alike a gradient has no direction that stands out, and then
# PowerSGD makes of the last bit's rounding another direction within ten steps.
SCALES = 0.5 ** torch.arange(INPUTS)
# Of PowerSGD: the rank, and the step of the first factors, which are files "q_" and the number of a parameter.
RANK, COMPRESSED_FROM = 2, 10
# What is sent in SINGA's sparse modes: a share of the elements, or those of that magnitude.
SHARE, MAGNITUDE = 0.05, 0.01
# Parameters that are averaged in turn in SINGA's partial mode, with a threshold of 100 elements.
PARTIAL_GROUPS = [[2], [0], [3, 1]]


def write(file, tensors):
    for tensor in tensors:
        file.write(tensor.detach().contiguous().numpy().tobytes())


def finished(tensor):
    future = torch.futures.Future()
    future.set_result(tensor)
    return future


def bf16_hook(group, bucket):
    mine = bucket.buffer().to(torch.bfloat16).div_(WORLD_SIZE)
    parts = [torch.empty_like(mine).view(torch.uint8) for _ in range(WORLD_SIZE)]
    dist.all_gather(parts, mine.view(torch.uint8))
    total = sum(part.view(torch.bfloat16) for part in parts)
    return finished(bucket.buffer().copy_(total))


def power_sgd(net, directory):
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=RANK, start_powerSGD_iter=COMPRESSED_FROM)
    numbers = {parameter: number for number, parameter in enumerate(net.parameters())}

    def hook(state, bucket):
        if state.iter == COMPRESSED_FROM:
            matrices = [parameter for parameter in bucket.parameters() if parameter.dim() > 1]
            state.p_memory_dict[bucket.index()] = torch.empty(RANK * sum(matrix.shape[0] for matrix in matrices))
            state.q_memory_dict[bucket.index()] = torch.cat([
                torch.from_file(os.path.join(directory, f"q_{numbers[matrix]}"), size=RANK * matrix.shape[1])
                for matrix in matrices])
        return powerSGD_hook.powerSGD_hook(state, bucket)

    return state, hook


def sparse(select):
    """What is selected travels, the rest is added to the next step's gradients."""
    residuals = {}

    def hook(state, bucket):
        pairs = list(zip(bucket.parameters(), bucket.gradients()))
        for parameter, gradient in pairs:
            gradient.add_(residuals.get(parameter, 0))
        values = bucket.buffer()
        chosen = select(values.abs())
        sent = torch.zeros_like(values)
        sent[chosen] = values[chosen]
        values.sub_(sent)
        for parameter, gradient in pairs:
            residuals[parameter] = gradient.clone()
        dist.all_reduce(sent)
        return finished(values.copy_(sent.div_(WORLD_SIZE)))

    return None, hook


def top_k(magnitudes):
    return magnitudes.topk(math.ceil(SHARE * magnitudes.numel())).indices


# Way -> from the network and the directory, a hook and its state.
HOOKS = {
    "fp16": lambda *_: (None, default_hooks.fp16_compress_hook),
    "bf16": lambda *_: (None, bf16_hook),
    "power_sgd": power_sgd,
    "top_k": lambda *_: sparse(top_k),
    "threshold": lambda *_: sparse(lambda magnitudes: magnitudes >= MAGNITUDE),
}


def average_in_turn(net, step):
    parameters = list(net.parameters())
    for number in PARTIAL_GROUPS[step % len(PARTIAL_GROUPS)]:
        value = parameters[number].data.div_(WORLD_SIZE)
        dist.all_reduce(value)


def train(rank, way, directory):
    join(rank, directory, rendezvous="rendezvous_" + way)
    torch.manual_seed(11)
    net = nn.Sequential(nn.Linear(INPUTS, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES))
    if rank == 0:
        with open(os.path.join(directory, "initial"), "wb") as file:
            write(file, net.parameters())
    model = net if way == "partial" else DistributedDataParallel(net)
    if way in HOOKS:
        model.register_comm_hook(*HOOKS[way](net, directory))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    data = torch.Generator().manual_seed(100 + rank)
    path = os.path.join(directory, f"batches_{rank}")
    with open(path, "wb") as batches, open(os.path.join(directory, f"parameters_{way}_{rank}"), "wb") as parameters:
        for step in range(STEPS):
            inputs = torch.randn(BATCH, INPUTS, generator=data) * SCALES
            labels = torch.randint(CLASSES, (BATCH,), generator=data)
            write(batches, [inputs, labels])
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
            if way == "partial":
                average_in_turn(net, step)
            write(parameters, net.parameters())
    # Nothing is torn down: with a Python hook that can wait for ever.
    dist.barrier()


if __name__ == "__main__":
    # One process for all, since importing takes longer than training. DistributedDataParallel of torch 2 imports this part late.
    if not torch.__version__.startswith("1."):
        import torch._dynamo
    sys.exit(0 if all(run(lambda rank: train(rank, way, sys.argv[1])) for way in sys.argv[2:]) else 1)
