"""PyTorch's DistributedDataParallel over Gloo, or no exchange at all ("local"), measured as training_step.cc measures.

usage: ddp_step.py MODEL ENGINE RANKS STEPS
"""

import datetime
import os
import sys
import tempfile
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from models import Mlp, MnistCnn, ResNet50

WARM_UP = 4
TIMEOUT = datetime.timedelta(minutes=2)


def make_model(name):
    """The model and a batch for it."""
    if name == "mnist":
        return MnistCnn(), torch.randn(64, 1, 28, 28)
    if name == "resnet50":
        return ResNet50(), torch.randn(4, 3, 64, 64)
    return Mlp(), torch.randn(32, 2048)


def run_rank(rank, name, engine, ranks, steps, folder):
    torch.set_num_threads(1)
    store = "file://" + os.path.join(folder, "store")
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=ranks, timeout=TIMEOUT)
    torch.manual_seed(1)
    model, batch = make_model(name)
    if engine != "local":
        model = DistributedDataParallel(model, gradient_as_bucket_view="views" in engine)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    drops = engine == "local" or engine.endswith("-drop")
    times = []
    for step in range(WARM_UP + steps):
        if step == WARM_UP:
            processor = time.process_time()
        begin = time.perf_counter()
        optimizer.zero_grad(set_to_none=drops)
        model(batch).pow(2).mean().backward()
        optimizer.step()
        if step >= WARM_UP:
            times.append((time.perf_counter() - begin) * 1e3)
    processor = (time.process_time() - processor) * 1e3 / steps
    if rank == 0:
        print("%.3f %.3f" % (sorted(times)[len(times) // 2], processor), flush=True)
    dist.barrier()


def main():
    name, engine, ranks, steps = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    with tempfile.TemporaryDirectory() as folder:
        children = []
        for rank in range(ranks):
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    run_rank(rank, name, engine, ranks, steps, folder)
                    status = 0
                finally:
                    sys.stdout.flush()
                    sys.stderr.flush()
                    os._exit(status)
            children.append(child)
        failed = [child for child in children if os.waitpid(child, 0)[1] != 0]
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
