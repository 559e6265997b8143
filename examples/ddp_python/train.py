"""Trains a classifier with PyTorch's DistributedDataParallel, and goes on from its checkpoint when it is started again.

    cadre run --nproc-per-node 2 --max-restarts 3 train.py

It runs under torchrun too, and by itself; without the module cadre only the display of its progress is missing.
"""
import argparse
import os
import signal

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

try:
    import cadre
except ImportError:
    cadre = None


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--checkpoint", default="checkpoint.pt")
    parser.add_argument("--fail-rank", type=int, default=-1, help="this rank is killed once, in --fail-epoch, to see what happens")
    parser.add_argument("--fail-epoch", type=int, default=2)
    return parser.parse_args()


def points(count=4096, inputs=64, classes=10):
    """Points around one centre for each class."""
    torch.manual_seed(0)
    centres, labels = torch.randn(classes, inputs), torch.randint(classes, (count,))
    return TensorDataset(centres[labels] + 1.5 * torch.randn(count, inputs), labels)


def save(path, **state):
    torch.save(state, path + ".new")
    os.replace(path + ".new", path)  # whole, or not at all


def main():
    options = parse()
    if "RANK" not in os.environ:  # python train.py
        os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    local_rank, on_gpu = int(os.environ["LOCAL_RANK"]), torch.cuda.is_available()
    device = torch.device("cuda", local_rank) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpu else "gloo")
    rank = dist.get_rank()

    data = points()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=options.batch_size, sampler=sampler)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).to(device)
    model = DistributedDataParallel(model, device_ids=[local_rank] if on_gpu else None)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    first = 0
    if os.path.exists(options.checkpoint):
        saved = torch.load(options.checkpoint, map_location=device)
        model.module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["epoch"]
        if rank == 0:
            print("training goes on after epoch %d" % first, flush=True)

    for epoch in range(first + 1, options.epochs + 1):
        sampler.set_epoch(epoch)
        for step, (inputs, labels) in enumerate(loader, (epoch - 1) * len(loader)):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs.to(device)), labels.to(device))
            loss.backward()
            optimizer.step()
            if cadre is not None:
                cadre.progress(step=step, loss=loss.item())
            if rank == options.fail_rank and epoch == options.fail_epoch and os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":
                os.kill(os.getpid(), signal.SIGKILL)
        if rank == 0:
            print("epoch %d/%d: loss %.4f" % (epoch, options.epochs, loss.item()), flush=True)
            save(options.checkpoint, model=model.module.state_dict(), optimizer=optimizer.state_dict(), epoch=epoch)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
