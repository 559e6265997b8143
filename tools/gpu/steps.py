"""A training step with our DataParallel beside PyTorch's DDP."""
from __future__ import annotations

import os
from typing import Callable

from compiling import STEP
from context import SHARING_ONE_GPU, Context, Part, read, road
from running import Failed, Skipped, lines_of

MODELS = ("resnet50", "transformer")
STEPS = 20
GIB = 1 << 30
# (Memory of a GPU in GiB, batch of each model): the greatest that fits with room.
BATCHES = ((70, {"resnet50": 128, "transformer": 8}), (30, {"resnet50": 64, "transformer": 4}),
           (14, {"resnet50": 32, "transformer": 2}), (0, {"resnet50": 8, "transformer": 1}))


def batch_for(model: str, context: Context, sharers: int) -> int:
    smallest = min(gpu["bytes"] for gpu in context.machine.gpus()) / GIB / sharers
    return next(batches[model] for least, batches in BATCHES if smallest >= least)


def step(model: str, device: str, backend: str, ranks: int | None, strategy: str = "ddp") -> Callable[[Context, Part], dict]:
    """`ranks` None: one for each GPU; else they share the first, or the CPU."""
    def run(context: Context, part: Part) -> dict:
        if device == "cpu" and context.machine.gpus():
            raise Skipped("there is a GPU: it is measured there")
        program = context.need_compiled(STEP)
        number = ranks or context.machine.torch["gpus"]
        if device == "cpu":
            size, env = ["tiny", "2", "3"], {"OMP_NUM_THREADS": "1"}
        else:
            size, env = ["full", str(batch_for(model, context, ranks or 1)), str(STEPS)], {}
        if ranks and device == "cuda":
            env["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
        share = SHARING_ONE_GPU if ranks and backend == "nccl" else []
        label = "step_%s_%s_%s_%s_%s" % (model, strategy, "shared" if ranks else "each", device, backend)
        ours, theirs = (os.path.join(context.output, label + end) for end in (".cadre.json", ".ddp.json"))
        log = context.cadre(label + "_cadre", number, [*share, program, model, device, *size, strategy, ours], part.limit / 2, env=env)
        complaint = next((line for line in lines_of(log) if "INTERNAL ASSERT FAILED" in line), None)
        if complaint is not None:
            raise Failed("libtorch says %s" % complaint[:300])
        script = os.path.join(context.root, "src/bench/training/device_step.py")
        context.cadre(label + "_ddp", number, [*share, context.machine.python, script, model, backend, device, *size, strategy, theirs],
                      part.limit / 2, env=env)
        ours, theirs = read(ours), read(theirs)
        return {"ranks": number, "batch": ours["batch"], "million_parameters": round(ours["parameters"] / 1e6, 1),
                "ms": {"ours": ours["step_ms"], "ours_alone": ours["alone_ms"],
                       "ddp": round(theirs["step_ms"], 3), "ddp_alone": round(theirs["alone_ms"], 3)},
                "of_ddp": round(ours["step_ms"] / theirs["step_ms"], 3), **road(log)}
    return run
