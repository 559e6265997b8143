#!/usr/bin/env python3
"""What people's scripts do that a forked interpreter could get wrong. Does CASE, and kills itself until it was forked from
one that had imported its packages; says what came of CASE, is killed once more, says it again, and ends.

usage: WARM_SCRIPT_FOLDER=FOLDER warm_script.py CASE
"""

import multiprocessing
import os
import pickle
import signal
import sys
import time

import numpy
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

MOST_LIVES = 12
# A template is begun two seconds after the last import.
LIFE = 4


class Point:
    def __init__(self, x):
        self.x = x


class Numbers(Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, index):
        return torch.tensor([float(index)])


def double(x):
    return 2 * x


def python():
    import warm_beside

    said = [sys.argv, os.path.basename(__file__), __name__, warm_beside.WHO, sys.path[0] == os.path.dirname(os.path.abspath(__file__))]
    again = pickle.loads(pickle.dumps(Point(3)))
    said += [type(again) is Point, Point.__module__, again.x]
    for method in ("fork", "spawn", "forkserver"):
        with multiprocessing.get_context(method).Pool(2) as pool:
            said.append(pool.map(double, [1, 2, 3]))
    for method in ("fork", "spawn"):
        loader = DataLoader(Numbers(), batch_size=4, num_workers=4, multiprocessing_context=method)
        said.append(sum(batch.sum().item() for batch in loader))
    return said


def ddp():
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    model = nn.parallel.DistributedDataParallel(nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    same = [torch.zeros(1, 4) for _ in range(dist.get_world_size())]
    dist.all_gather(same, model.module.weight.detach())
    dist.barrier()
    return [all(torch.equal(each, same[0]) for each in same), dist.get_world_size()]


def random():
    """No two ranks may draw the same."""
    dist.init_process_group("gloo")
    mine = torch.tensor([torch.rand(1).item(), float(numpy.random.rand())], dtype=torch.float64)
    drawn = [torch.zeros(2, dtype=torch.float64) for _ in range(dist.get_world_size())]
    dist.all_gather(drawn, mine)
    return [len({each[i].item() for each in drawn}) for i in range(2)]


def mesh(*names):
    from torch.distributed.device_mesh import init_device_mesh

    dist.init_process_group("gloo")
    return init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=names)


def trained(model, optimizer, steps=3):
    """The loss of each step, the same on all ranks: they train on the same numbers."""
    torch.manual_seed(7)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(torch.rand(4, 16)).pow(2).mean()
        loss.backward()
        optimizer.step()
        losses.append(round(loss.item(), 5))
    return losses


def layers():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))


def fsdp():
    """As PyTorch's FSDP2 example: layers sharded one by one, then the whole, and its checkpoint."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    over = mesh("data")
    model = layers()
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=over, mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.float32))
    fully_shard(model, mesh=over)
    losses = trained(model, torch.optim.AdamW(model.parameters(), lr=1e-2))
    whole = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    shards = {tuple(parameter.to_local().shape) for parameter in model.parameters()}
    return [losses, sorted(shards), len(whole) if dist.get_rank() == 0 else 4]


def tensor_parallel():
    """As PyTorch's tensor-parallel example: the first layer by columns, the second by rows."""
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    over = mesh("tensor")
    model = parallelize_module(layers(), over, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    losses = trained(model, torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=True))
    return [losses, tuple(model[0].weight.to_local().shape), tuple(model[2].weight.to_local().shape)]


def checkpoint():
    """As PyTorch's example of torch.distributed.checkpoint: a state of sharded tensors, saved by all and loaded into another."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    from torch.distributed.fsdp import fully_shard

    over = mesh("data")
    folder = f"{os.environ['WARM_SCRIPT_FOLDER']}/life_{os.environ['TORCHELASTIC_RESTART_COUNT']}"
    model = fully_shard(layers(), mesh=over)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = trained(model, optimizer)
    weights, state = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": state}, checkpoint_id=folder)
    other = fully_shard(layers(), mesh=over)
    optimizer = torch.optim.AdamW(other.parameters(), lr=1e-2)
    weights, state = get_state_dict(other, optimizer)
    dcp.load({"model": weights, "optimizer": state}, checkpoint_id=folder)
    set_state_dict(other, optimizer, model_state_dict=weights, optim_state_dict=state)
    same = all(torch.equal(a.to_local(), b.to_local()) for a, b in zip(model.parameters(), other.parameters()))
    return [losses, same, trained(other, optimizer, 1)]


def compiled():
    function = torch.compile(lambda x: torch.sin(x) ** 2 + torch.cos(x) ** 2)
    return [round(function(torch.arange(8.0)).sum().item(), 3)]


def lightning():
    import lightning.pytorch as pl

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(1, 1)

        def training_step(self, batch, _):
            return self.layer(batch).pow(2).mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=1e-6)

    trainer = pl.Trainer(accelerator="cpu", devices=int(os.environ["WORLD_SIZE"]), strategy="ddp", max_steps=4, logger=False,
                         enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(Module(), DataLoader(Numbers(), batch_size=4))
    return [trainer.global_step, trainer.world_size, trainer.global_rank == int(os.environ["RANK"])]


def accelerate():
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = nn.Linear(1, 1)
    model, optimizer, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1e-6),
                                                   DataLoader(Numbers(), batch_size=4))
    for batch in loader:
        optimizer.zero_grad()
        accelerator.backward(model(batch).pow(2).mean())
        optimizer.step()
    return [accelerator.num_processes, accelerator.process_index == int(os.environ["RANK"]), len(loader)]


def is_warm():
    with open("/proc/self/environ", "rb") as file:
        return b"CADRE_WARM_START=template" in file.read()


def second_time():
    """Whether this rank was warm before."""
    mark = f"{os.environ['WARM_SCRIPT_FOLDER']}/warm_{os.environ['RANK']}"
    if os.path.exists(mark):
        return True
    with open(mark, "w"):
        return False


if __name__ == "__main__":
    result = globals()[sys.argv[1]]()
    life = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    warm = is_warm()
    again = warm and second_time()
    if warm or life == 0:
        print("again" if again else "warm" if warm else "plainly", *result, flush=True)
    if dist.is_initialized():
        # All have said it.
        dist.barrier()
        if again:
            dist.destroy_process_group()
    if again:
        sys.exit(0)
    if life > MOST_LIVES:
        sys.exit("never warm")
    if not warm:
        time.sleep(LIFE)
    os.kill(os.getpid(), signal.SIGKILL)
