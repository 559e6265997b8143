#!/usr/bin/env python3
"""Trains with what PyPI brings, and writes down what each life of each rank finds in its process; kills itself after each, until
there are two lives that were started as asked for.

usage: PYTHONHASHSEED=0 WARM_SCRIPT_FOLDER=FOLDER WARM_SCRIPT_HOW=plain|warm warm_kinds.py
       warm_kinds.py compare FOLDER
"""

import glob
import os
import random
import secrets
import signal
import sys
import tempfile
import time
import uuid
import warnings

import numpy
import torch
import torch.distributed as dist
# These are libraries that the packages of both use.
import accelerate
import aiohttp
import anyio
import attr
import fsspec
import huggingface_hub
import jinja2
import lightning
import lightning.pytorch
import networkx
import psutil
import safetensors.torch
import sympy
import torchmetrics
import tqdm
import yaml

import warm_globals

MOST_LIVES = 12
# A template is started two seconds after the last import, and the examination of packages yields to all other
# processes.
LIFE = 4


def train():
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.rand(2, 4)).sum().backward()
        optimizer.step()


def facts():
    said = {"environ " + name: value for name, value in os.environ.items()}
    said.update({
        "drawn by random": random.random(),
        "drawn by numpy": numpy.random.rand(),
        "drawn by a generator of numpy's": numpy.random.default_rng().random(),
        "drawn by torch": torch.rand(1).item(),
        "seed of torch": torch.initial_seed(),
        "drawn by secrets": secrets.token_hex(8),
        "uuid": uuid.uuid4(),
        "temporary file": tempfile.NamedTemporaryFile().name,
        "temporary folder": tempfile.gettempdir(),
        "path": sys.path,
        "flags": sys.flags,
        "threads of torch": torch.get_num_threads(),
        "process of psutil": psutil.Process().pid,
        "session": os.getsid(0),
        "filters of warnings": sorted(map(str, warnings.filters)),
        "signal handlers": [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE)],
    })
    return said


def is_warm():
    with open("/proc/self/environ", "rb") as file:
        return b"CADRE_WARM_START=template" in file.read()


def main():
    if sys.argv[1:2] == ["compare"]:
        sys.exit("\n".join(warm_globals.differences(sys.argv[2], ALLOWED)) or None)
    folder, wanted, rank = os.environ["WARM_SCRIPT_FOLDER"], os.environ["WARM_SCRIPT_HOW"], os.environ["RANK"]
    said = facts()
    train()
    how = "warm" if is_warm() else "plain"
    lives = len(glob.glob("%s/%s.*.%s" % (folder, how, rank)))
    if how == wanted:
        warm_globals.record("%s/%s.%d.%s" % (folder, how, lives, rank), said)
        lives += 1
    dist.barrier()
    if how == wanted and lives == 2:
        dist.destroy_process_group()
        return
    life = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    if life > MOST_LIVES:
        sys.exit("never %s" % wanted)
    if how != wanted:
        time.sleep(LIFE * 2**life)
    os.kill(os.getpid(), signal.SIGKILL)


# These differences are allowed: they can be observed (docs/warm_start.md) but do not change what a program does.
ALLOWED = (
    "environ WARM_SCRIPT_HOW",
    # The order in which packages were imported, and from where.
    "_warnings.filters",
    "warnings.filters",
    "linecache.cache",
    "torch.cuda._queued_calls",
    # These depend on addresses of functions.
    "torch._dynamo.trace_rules._",
    "torch._dynamo.variables.torch_function.banned_attrs",
    # These are names of attributes within one process.
    "torch.distributed._composable.contract.",
)

if __name__ == "__main__":
    main()
