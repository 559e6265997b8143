"""What goodput_step.cc does, with PyTorch's DistributedDataParallel over Gloo: the same network, steps of the same length,
a checkpoint as often. Rank 0 saves it in the way that tutorials show; nobody waits for the disk. With --memory all save with
cadre.checkpoint in each step instead: one state for all ranks, or each its own, which the next node has, too.

usage: goodput_step.py --dir DIR [--step-ms 50] [--batch 16] [--save-every 20] [--memory replicated|own]
"""

import os
import sys
import time


def append(directory, name, *words):
    with open(os.path.join(directory, name), "ab", buffering=0) as file:
        file.write((" ".join(str(word) for word in (*words, time.monotonic_ns())) + "\n").encode())


def main(options):
    rank = int(os.environ["RANK"])

    def event(name):
        append(options.dir, "events", os.getpid(), rank, name)

    # Before the import, which takes seconds: whoever looks for workers to kill finds it here.
    event("main")
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F
    from torch.nn.parallel import DistributedDataParallel

    sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../training"))
    from models import MnistCnn

    dist.init_process_group("gloo")
    event("connected")
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = DistributedDataParallel(MnistCnn(), gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    path = os.path.join(options.dir, "checkpoint.pt")
    step = 0
    replicated = options.memory == "replicated"
    if options.memory:
        import cadre

        checkpoint, last = cadre.checkpoint.latest(replicated=replicated)
        if checkpoint is not None:
            model.module.load_state_dict(checkpoint["model"])
            optimizer.load_state_dict(checkpoint["optimizer"])
            step = last
    elif os.path.exists(path):
        checkpoint = torch.load(path)
        model.module.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        step = checkpoint["step"]
    event("resumed")
    images = torch.randn(options.batch, 1, 28, 28)
    labels = torch.randint(10, (options.batch,))
    first = True
    while True:
        end = time.monotonic() + options.step_ms / 1e3
        optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()
        step += 1
        if options.memory:
            state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
            cadre.checkpoint.save(state, step, replicated=replicated)
        time.sleep(max(end - time.monotonic(), 0))
        if rank == 0:
            append(options.dir, "steps", step)
        if first:
            event("stepped")
            first = False
        if not options.memory and rank == 0 and step % options.save_every == 0:
            state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(state, path + ".tmp")
            os.replace(path + ".tmp", path)


if __name__ == "__main__":
    import argparse

    parser = argparse.ArgumentParser()
    parser.add_argument("--dir", required=True)
    parser.add_argument("--step-ms", type=int, default=50)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--save-every", type=int, default=20)
    parser.add_argument("--memory", choices=["replicated", "own"])
    main(parser.parse_args())
