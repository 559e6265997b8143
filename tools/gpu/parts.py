"""What is checked: a table of parts, each with what it needs, how long it takes, and how it runs."""
from __future__ import annotations

import os
import re
from typing import Callable

from compiling import ADAPTER, FIRST_EXAMPLE, MORE_EXAMPLES
from context import SHARING_ONE_GPU, Context, Part, read, road
from machine import Machine
from running import Failed, Skipped, explanation, lines_of, succeed
from steps import MODELS, step

ARGUMENTS = {FIRST_EXAMPLE: [], "mnist_cnn": ["--epochs", "1", "--limit", "4096"],
             "cifar_resnet50": ["--epochs", "1", "--limit", "1024", "--batch-size", "64"]}


def doctor(context: Context, part: Part) -> dict:
    succeed(context.run("doctor", [os.path.join(context.root, "bin/cadre"), "doctor"], part.limit), "cadre doctor",
            context.log("doctor"))
    return {}


def googletest(program: str, tests: str) -> Callable[[Context, Part], dict]:
    """Tests that say themselves why they skip."""
    def run(context: Context, part: Part) -> dict:
        argv = [os.path.join(context.root, "tests", program), "--gtest_filter=" + tests, "--gtest_color=no"]
        status = context.run(program, argv, part.limit)
        lines = lines_of(context.log(program))
        if status != 0:
            failed = next((line for line in lines if line.startswith("[  FAILED  ]")), program)
            raise Failed("%s: %s" % (failed, explanation(context.log(program))))
        passed = sum(line.startswith("[       OK ]") for line in lines)
        skipped = sum(line.startswith("[  SKIPPED ]") and line.endswith("ms)") for line in lines)
        if passed == 0:
            at = next((i for i, line in enumerate(lines) if line.endswith(": Skipped")), None)
            raise Skipped(lines[at + 1] if at is not None else "no test ran")
        return {"tests": passed, **({"skipped": skipped} if skipped else {})}
    return run


def ddp(context: Context, part: Part) -> dict:
    script = os.path.join(context.root, "examples/ddp_python/train.py")
    checkpoint = os.path.join(context.output, "ddp_nccl.pt")
    if os.path.exists(checkpoint):
        os.remove(checkpoint)
    log = context.cadre("ddp_nccl", "gpu", [context.machine.python, script, "--epochs", "2", "--checkpoint", checkpoint],
                        part.limit, env={"NCCL_DEBUG": "VERSION"})
    text = "\n".join(lines_of(log))
    if "epoch 2/2: loss" not in text:
        raise Failed("it did not train: see " + log)
    version = re.search(r"NCCL version (\S+)", text)
    return {"ranks": context.machine.torch["gpus"], **({"nccl": version.group(1)} if version else {})}


def adapter(context: Context, _part: Part) -> dict:
    return {"bytes": os.path.getsize(context.need_compiled(ADAPTER))}


def example(name: str, device: str) -> Callable[[Context, Part], dict]:
    def run(context: Context, part: Part) -> dict:
        program = context.need_compiled(name)
        ranks = context.machine.torch["gpus"] if device == "cuda" else 2
        log = context.cadre("%s_%s" % (name, device), ranks, [program, "--device", device, *ARGUMENTS[name]], part.limit)
        return {"ranks": ranks, **road(log)}
    return run


def nccl_failure(way: str) -> Callable[[Context, Part], dict]:
    def run(context: Context, part: Part) -> dict:
        name = "nccl_" + way
        result = os.path.join(context.output, name + ".json")
        script = os.path.join(context.root, "gpu/nccl_failure.py")
        share = [] if context.machine.torch["gpus"] > 1 else SHARING_ONE_GPU
        log = context.cadre(name, 2, [*share, context.machine.python, script, way, "nccl", result], part.limit,
                            ["--max-restarts", "1", "--set", "timeouts.progress=10s"])
        # Whom the launcher blames.
        named = next((line for line in lines_of(log) if "stopping generation 1: rank 1 " in line), None)
        if named is None:
            raise Failed("rank 1 was %s, and is not named: see %s" % (way, log))
        return {"seconds_to_next_sum": round(read(result)["seconds_to_next_sum"], 2), "named": named}
    return run


def steps_of_models(title: str, seconds: float, limit: float, needs: Callable[[Machine], None] | None, device: str, backend: str,
                    ranks: int | None) -> list[Part]:
    return [Part(title % model, seconds, limit, step(model, device, backend, ranks), needs) for model in MODELS]


def all_parts() -> list[Part]:
    """In the order in which they run: what is compiled meanwhile comes late, what others can do without last."""
    gpu, on_gpu, nccl = Machine.need_gpu, Machine.need_torch_on_gpu, Machine.need_nccl
    communicator = googletest("nccl_communicator_check", "*NcclWorldTest.*:NcclCommunicatorTest.*:*NcclParts*")
    parts = [Part("cadre doctor", 2, 30, doctor),
             Part("PyTorch DDP with nccl, one rank per GPU", 20, 90, ddp, nccl),
             Part("communicator on the GPU", 60, 120, communicator, gpu),
             Part("adapter for this libtorch", 1, 300, adapter),
             Part("C++ example %s on the CPU" % FIRST_EXAMPLE, 5, 60, example(FIRST_EXAMPLE, "cpu"))]
    parts += [Part("C++ example %s on the GPU" % name, 10, 60, example(name, "cuda"), on_gpu)
              for name in (FIRST_EXAMPLE, *MORE_EXAMPLES)]
    parts += steps_of_models("tiny step of %s on the CPU, two ranks, Gloo", 15, 240, None, "cpu", "gloo", 2)
    parts += steps_of_models("step of %s, one rank per GPU, nccl", 35, 160, nccl, "cuda", "nccl", None)
    for strategy, ranks, said in (("bf16", 2, "two"), ("sharded", 2, "two"), ("fsdp", 2, "two"), ("offload", 2, "two"), ("hybrid", 4, "four")):
        parts += [Part("tiny %s step of transformer on the CPU, %s ranks, Gloo" % (strategy, said), 15, 240,
                       step("transformer", "cpu", "gloo", ranks, strategy)),
                  Part("%s step of transformer, %s ranks on one GPU, nccl" % (strategy, said), 50, 160,
                       step("transformer", "cuda", "nccl", ranks, strategy), nccl)]
    parts += steps_of_models("step of %s, two ranks on one GPU, Gloo", 50, 160, on_gpu, "cuda", "gloo", 2)
    parts += steps_of_models("step of %s, two ranks on one GPU, nccl", 50, 160, nccl, "cuda", "nccl", 2)
    parts += [Part("a rank is %s in an NCCL collective" % way, 30, 120, nccl_failure(way), nccl)
              for way in ("killed", "stopped")]
    return parts
