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
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

WARM_UP = 4
TIMEOUT = datetime.timedelta(minutes=2)


class MnistCnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 20, 5)
        self.conv2 = nn.Conv2d(20, 50, 5)
        self.fc1 = nn.Linear(4 * 4 * 50, 500)
        self.fc2 = nn.Linear(500, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.fc2(F.relu(self.fc1(x.flatten(1))))


def convolution(inputs, outputs, kernel, stride):
    return nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=False)


class Bottleneck(nn.Module):
    def __init__(self, inputs, width, stride):
        super().__init__()
        self.body = nn.Sequential(
            convolution(inputs, width, 1, 1), nn.BatchNorm2d(width), nn.ReLU(),
            convolution(width, width, 3, stride), nn.BatchNorm2d(width), nn.ReLU(),
            convolution(width, 4 * width, 1, 1), nn.BatchNorm2d(4 * width))
        self.shortcut = nn.Identity()
        if stride != 1 or inputs != 4 * width:
            self.shortcut = nn.Sequential(
                convolution(inputs, 4 * width, 1, stride), nn.BatchNorm2d(4 * width))

    def forward(self, x):
        return F.relu(self.body(x) + self.shortcut(x))


class ResNet50(nn.Module):
    def __init__(self):
        super().__init__()
        layers = [convolution(3, 64, 7, 2), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
        inputs = 64
        for stage, blocks in enumerate([3, 4, 6, 3]):
            width = 64 << stage
            for block in range(blocks):
                layers.append(Bottleneck(inputs, width, 2 if block == 0 and stage > 0 else 1))
                inputs = 4 * width
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(2048, 1000)

    def forward(self, x):
        return self.head(self.body(x).mean((2, 3)))


def make_model(name):
    """The model and a batch for it."""
    if name == "mnist":
        return MnistCnn(), torch.randn(64, 1, 28, 28)
    if name == "resnet50":
        return ResNet50(), torch.randn(4, 3, 64, 64)
    layers = []
    for _ in range(6):
        layers += [nn.Linear(2048, 2048), nn.ReLU()]
    return nn.Sequential(*layers[:-1]), torch.randn(32, 2048)


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
