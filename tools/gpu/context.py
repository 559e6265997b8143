"""What the parts of the check share."""
from __future__ import annotations

import dataclasses
import json
import os
from typing import Callable

from compiling import Compilation
from machine import Machine
from running import Clock, Failed, Programs, Skipped, lines_of, succeed
from vendor import vendor_libraries

# NCCL takes one rank on each GPU. Ranks that share one say that they are other machines, and so exchange over sockets.
SHARING_ONE_GPU = ["sh", "-c", 'NCCL_HOSTID=rank$RANK NCCL_SOCKET_IFNAME=lo exec "$0" "$@"']


@dataclasses.dataclass
class Context:
    root: str
    output: str
    machine: Machine
    programs: Programs
    clock: Clock
    compilation: Compilation | None = None

    def log(self, name: str) -> str:
        return os.path.join(self.output, name + ".log")

    def run(self, name: str, argv: list[str], limit: float, env: dict[str, str] | None = None) -> int:
        """Its exit status; it finds NVIDIA's libraries where PyTorch has them. Output goes to log(name)."""
        return self.programs.run(argv, self.log(name), min(limit, self.clock.left()),
                                 {**vendor_libraries(self.machine), **(env or {})}, self.output)

    def cadre(self, name: str, ranks: int | str, command: list[str], limit: float, options: list[str] | None = None,
              env: dict[str, str] | None = None) -> str:
        """Runs a job to its end and gives its log. Failed: it did."""
        flags = ["--standalone", "--nproc-per-node", str(ranks), "--set", "timeouts.stop_grace=5s", "--job-name", name.replace("_", "-"),
                 "--log-dir", os.path.join(self.output, "jobs"), *(options or [])]
        status = self.run(name, [os.path.join(self.root, "bin/cadre"), "run", *flags, "--", *command], limit, env)
        succeed(status, "cadre run", self.log(name))
        return self.log(name)

    def need_compiled(self, name: str) -> str:
        """The program's path, or the object's."""
        self.machine.need_torch()
        self.machine.need_compiler()
        problem = self.compilation.problem() or self.compilation.problem_of(name)
        if problem:
            raise Skipped(problem)
        return self.compilation.result(name)


@dataclasses.dataclass
class Part:
    name: str
    # Seconds that it usually takes where it can run, and at most.
    usual: float
    limit: float
    # Gives figures, which are printed behind it and kept. Skipped, Failed.
    run: Callable[[Context, Part], dict]
    needs: Callable[[Machine], None] | None = None


def road(log: str) -> dict:
    """Why gradients went through the host's memory, where they did: a rank says so (worker_runtime/torch/device_links.cc)."""
    said = next((line for line in lines_of(log) if "cadre: gradients on " in line), None)
    return {"road": said} if said else {}


def read(path: str) -> dict:
    """Figures that a program wrote."""
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except (OSError, ValueError) as error:
        raise Failed("no figures in %s: %s" % (path, error)) from error
