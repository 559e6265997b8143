"""The machine on which is checked: what it has, and what a part may ask for."""
from __future__ import annotations

import json
import os
import platform
import shutil

from running import Failed, Programs, Skipped, explanation, lines_of

# As of the programs in the archive.
NEEDED_GLIBC = (2, 34)


def glibc() -> str:
    return (os.confstr("CS_GNU_LIBC_VERSION") or "none").split()[-1]


def glibc_problem() -> str | None:
    """Why the archive's programs do not start here, or None."""
    version = glibc()
    try:
        if tuple(int(part) for part in version.split(".")[:2]) >= NEEDED_GLIBC:
            return None
    except ValueError:
        pass
    return "this system has glibc %s; the archive's programs need 2.34 or newer (RHEL 9, Ubuntu 22.04, Debian 12)" % version


def processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.machine()


class Machine:
    """What probe.py, run by `python`, found out. Failed: it is no Python."""

    def __init__(self, programs: Programs, python: str, folder: str, seconds: float) -> None:
        self.python = python
        log = os.path.join(folder, "probe.log")
        expected = "expected a Python of 3.8 or newer: see --python"
        probe = os.path.join(os.path.dirname(os.path.abspath(__file__)), "probe.py")
        try:
            status = programs.run([python, probe], log, seconds)
            if status != 0:
                raise Failed("%s ended with %d: %s" % (python, status, explanation(log)))
            found = json.loads((lines_of(log) or [""])[-1])
        except Failed as problem:
            raise Failed("%s; %s" % (problem, expected)) from problem
        except ValueError as error:
            raise Failed("%s does not print what probe.py prints; %s" % (python, expected)) from error
        self.python_version, self.driver, self.torch = found["python"], found["driver"], found["torch"]
        self.compiler = next((path for path in map(shutil.which, (os.environ.get("CXX", "c++"), "c++", "g++", "clang++")) if path), None)

    def description(self) -> dict:
        return {"system": platform.platform(), "machine": platform.machine(), "processor": processor(), "cores": os.cpu_count(),
                "glibc": glibc(), "python": self.python_version, "interpreter": self.python, "compiler": self.compiler,
                "driver": self.driver, "torch": self.torch}

    def gpus(self) -> list[dict]:
        return self.driver.get("gpus", [])

    # What a part may ask for; Skipped says what is missing.

    def need_gpu(self) -> None:
        if not self.gpus():
            raise Skipped("no GPU: " + self.driver["error"])

    def need_torch(self) -> None:
        if "error" in self.torch:
            raise Skipped("no PyTorch: %s says %s; activate its environment, or name its interpreter with --python"
                          % (self.python, self.torch["error"]))

    def need_torch_on_gpu(self) -> None:
        self.need_gpu()
        self.need_torch()
        if self.torch["gpus"] == 0:
            raise Skipped("%s; the driver is %s, for CUDA %s" % (self.torch["gpu_error"] or "PyTorch sees no GPU",
                                                                 self.driver.get("version"), self.driver.get("cuda")))

    def need_nccl(self) -> None:
        self.need_torch_on_gpu()
        if self.torch["nccl"] is None:
            raise Skipped("this PyTorch has no NCCL: " + self.torch.get("nccl_error", ""))

    def need_compiler(self) -> None:
        if self.compiler is None:
            raise Skipped("no C++ compiler: neither $CXX nor c++, g++ or clang++ was found; install one")
