"""Trains a model that is sharded over the ranks (FSDP2), and loses a node once.

usage: sharded_script.py into|new STEPS DIE_AT [node]
"""

import os
import signal
import sys

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict, set_model_state_dict
from torch.distributed.checkpoint.state_dict import set_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import cadre
from kill_node import kill_node

RANK, FIRST = int(os.environ["RANK"]), os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
INTO, STEPS, DIE_AT = sys.argv[1] == "into", int(sys.argv[2]), int(sys.argv[3])


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    # The last one's rows are not the same number on all ranks.
    model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 3))
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    optimizer = torch.optim.Adam(model.parameters())

    def state():
        return {"model": get_model_state_dict(model), "optimizer": get_optimizer_state_dict(model, optimizer), "rank": RANK}

    mine = state()
    saved, last = cadre.checkpoint.latest(into=mine if INTO else None)
    if saved is not None:
        weight = saved["model"]["0.weight"]
        assert type(weight) is torch.distributed.tensor.DTensor and weight.to_local().shape == (128, 256)
        if INTO:
            assert weight.to_local().data_ptr() == mine["model"]["0.weight"].to_local().data_ptr()
        else:
            set_model_state_dict(model, saved["model"])
        set_optimizer_state_dict(model, optimizer, optim_state_dict=saved["optimizer"])
        print(f"rank {RANK} goes on behind step {last} of rank {saved['rank']}", flush=True)
    for step in range(last + 1, STEPS):
        generator = torch.Generator().manual_seed(step)
        optimizer.zero_grad()
        model(torch.randn(16, 256, generator=generator)).pow(2).mean().backward()
        optimizer.step()
        cadre.checkpoint.save(state(), step)
        if FIRST and step == DIE_AT and RANK == 1:
            if sys.argv[4:] == ["node"]:
                kill_node()
            os.kill(os.getpid(), signal.SIGKILL)
    cadre.checkpoint.wait()
    total = sum(value.full_tensor().double().sum().item() for value in get_model_state_dict(model).values())
    print(f"rank {RANK} ends with {total:.12f}", flush=True)
    dist.destroy_process_group()
    # Not by way of the interpreter's end: there PyTorch 2.15 may abort, since Gloo's thread lets its last tensor go, for which it needs
    # an interpreter that is there.
    os._exit(0)


if __name__ == "__main__":
    main()
