"""What the programs share that our training is compared with: two processes over Gloo, a small network, and files of raw
little-endian values for reference_training.h.
"""

import datetime
import os
import sys
import traceback

import torch
import torch.distributed as dist

WORLD_SIZE = 2
STEPS = 50
SMALL_BATCH = 8


def write(directory, name, tensors):
    with open(os.path.join(directory, name), "wb") as file:
        for tensor in tensors:
            file.write(tensor.detach().contiguous().numpy().tobytes())


def join(rank, directory, rendezvous="rendezvous"):
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method="file://" + os.path.join(directory, rendezvous),
        rank=rank,
        world_size=WORLD_SIZE,
        timeout=datetime.timedelta(seconds=60),
    )


def leave():
    dist.barrier()
    dist.destroy_process_group()


def train_small(rank, directory, net, wrap, whole=lambda parameter: parameter):
    """Trains a network with 12 inputs, and writes its first and last parameters and all batches.

    wrap: of the network: the model that is called and its optimizer.
    whole: a parameter as it would be on one process; collective.
    """
    if rank == 0:
        write(directory, "initial", net.parameters())
    model, optimizer = wrap(net)
    data = torch.Generator().manual_seed(1000 + rank)
    for step in range(STEPS):
        inputs = torch.randn(SMALL_BATCH, 12, generator=data)
        write(directory, f"inputs_{step}_{rank}", [inputs])
        optimizer.zero_grad()
        model(inputs).pow(2).mean().backward()
        optimizer.step()
    final = [whole(parameter) for parameter in net.parameters()]
    if rank == 0:
        write(directory, "final", final)


def run(train):
    """Calls train with each rank, in a process of its own; whether all succeeded."""
    children = []
    for rank in range(WORLD_SIZE):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                train(rank)
                status = 0
            except Exception:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(status)
        children.append(child)
    return not any([os.waitpid(child, 0)[1] for child in children])
