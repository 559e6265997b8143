"""The step of device_step.cc with PyTorch's DistributedDataParallel, with bf16_compress_hook (bf16) or ZeroRedundancyOptimizer (sharded), or with
FSDP2 (fsdp, offload, hybrid).

usage: cadre run ... device_step.py MODEL BACKEND DEVICE SHAPE BATCH STEPS STRATEGY RESULT
"""

import datetime
import json
import os
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from models import ResNet50, Transformer

WARM_UP = 5
RANKS_OF_REPLICA = 2
TINY = dict(layers=2, width=64, heads=4, vocabulary=512, context=64)


def make(name, tiny, batch, device):
    """The model, and a batch with a label for each row of its logits."""
    if name == "resnet50":
        side = 64 if tiny else 224
        return (ResNet50().to(device), torch.randn(batch, 3, side, side, device=device),
                torch.randint(1000, (batch,), device=device))
    model = Transformer(**(TINY if tiny else {})).to(device)
    vocabulary, context = model.tokens.num_embeddings, model.positions.num_embeddings
    return (model, torch.randint(vocabulary, (batch, context), device=device),
            torch.randint(vocabulary, (batch * context,), device=device))


def median(model, optimizer, inputs, labels, steps, device):
    """Of a step, in milliseconds."""
    times = []
    for step in range(WARM_UP + steps):
        begin = time.perf_counter()
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        if step >= WARM_UP:
            times.append((time.perf_counter() - begin) * 1e3)
    return sorted(times)[len(times) // 2]


def on_all_ranks(strategy, model, optimizer, device):
    """What is called, and what steps, of a model that was one rank's."""
    if strategy in ("fsdp", "offload", "hybrid"):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy, fully_shard
        ranks = dist.get_world_size()
        shape = (ranks // RANKS_OF_REPLICA, RANKS_OF_REPLICA) if strategy == "hybrid" else (ranks,)
        mesh = init_device_mesh(device.type, shape, mesh_dim_names=("replicas", "shards")[-len(shape):])
        policy = CPUOffloadPolicy(pin_memory=device.type == "cuda") if strategy == "offload" else OffloadPolicy()
        for part in (*model.blocks, model):
            fully_shard(part, mesh=mesh, offload_policy=policy)
        return model, torch.optim.Adam(model.parameters(), lr=1e-3)
    # The faster of its two forms.
    parallel = DistributedDataParallel(model, device_ids=[device] if device.type == "cuda" else None, gradient_as_bucket_view=True)
    if strategy == "bf16":
        parallel.register_comm_hook(None, bf16_compress_hook)
    if strategy == "sharded":
        optimizer = ZeroRedundancyOptimizer(parallel.parameters(), optimizer_class=torch.optim.Adam, lr=1e-3)
    return parallel, optimizer


def main():
    name, backend, where, shape, batch, steps, strategy, result = sys.argv[1:]
    device = torch.device("cpu")
    if where == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        torch.cuda.set_device(device)
    dist.init_process_group(backend, timeout=datetime.timedelta(minutes=2))
    torch.set_float32_matmul_precision("high")
    torch.manual_seed(dist.get_rank())
    model, inputs, labels = make(name, shape == "tiny", int(batch), device)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    optimizer = (torch.optim.SGD if strategy in ("ddp", "bf16") else torch.optim.Adam)(model.parameters(), lr=1e-3)
    alone = median(model, optimizer, inputs, labels, int(steps), device)
    model, optimizer = on_all_ranks(strategy, model, optimizer, device)
    step = median(model, optimizer, inputs, labels, int(steps), device)
    if dist.get_rank() == 0:
        with open(result, "w", encoding="utf-8") as file:
            json.dump(dict(ranks=dist.get_world_size(), batch=int(batch), parameters=parameters, alone_ms=alone, step_ms=step), file)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
