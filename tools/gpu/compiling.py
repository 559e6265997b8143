"""Compiles the adapter and the programs with libtorch in them, behind the other parts: a compiler and nothing else is needed."""
from __future__ import annotations

import concurrent.futures
import glob
import os
import re

from machine import Machine
from running import Clock, Failed, Programs, Skipped, explanation

# Compiled everywhere; the others where they do not delay what is measured.
FIRST_EXAMPLE = "ddp_basic"
MORE_EXAMPLES = ("mnist_cnn", "cifar_resnet50")
CORES_FOR_MORE = 8
STEP = "device_step"
ADAPTER = "adapter"


def sources_of_examples(root: str) -> dict[str, list[str]]:
    """As examples/CMakeLists.txt names them; one line with a variable in it stands for the tutorial's programs."""
    folder = os.path.join(root, "examples")
    with open(os.path.join(folder, "CMakeLists.txt"), encoding="utf-8") as file:
        text = file.read().replace("${step}", "basic")
    sources: dict[str, list[str]] = {}
    for name, paths in re.findall(r"(?:add_example|target_sources)\((\w+)\s+(?:PRIVATE )?([^)]*)\)", text):
        sources.setdefault(name, []).extend(os.path.join(folder, path) for path in paths.split())
    return {name: sources[name] for name in (FIRST_EXAMPLE, *MORE_EXAMPLES)}


class Compilation:
    """Object files are made as many at a time as there are cores, each program once its own are there."""

    def __init__(self, root: str, folder: str, machine: Machine, programs: Programs, clock: Clock, all_examples: bool) -> None:
        self._root, self._folder, self._machine, self._programs, self._clock = root, folder, machine, programs, clock
        self._torch = machine.torch.get("folder", "")
        self._more_examples = all_examples or (bool(machine.gpus()) and (os.cpu_count() or 1) >= CORES_FOR_MORE)
        # Each waits for others' objects in a thread of its own: they must not take the threads that compile.
        self._compilers = concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 1)
        self._linkers = concurrent.futures.ThreadPoolExecutor(8)
        self._objects: dict[str, concurrent.futures.Future] = {}
        self._results: dict[str, concurrent.futures.Future] = {}

    def problem(self) -> str | None:
        """Why this libtorch cannot be compiled against."""
        version = self._machine.torch["version"]
        if not self._machine.torch["new_abi"]:
            return "PyTorch %s was built for the old C++ ABI; expected PyTorch 2.7 or newer" % version
        if not os.path.exists(os.path.join(self._torch, "include/torch/csrc/api/include/torch/torch.h")):
            return "there are no headers of PyTorch in %s/include; expected a PyTorch of PyPI" % self._torch
        return None

    def problem_of(self, name: str) -> str | None:
        """Why this program is not compiled, though others are."""
        version = self._machine.torch["version"]
        if name == STEP and int(version.split(".")[0]) < 2:
            return "PyTorch %s has no scaled_dot_product_attention; expected 2.0 or newer" % version
        if name in MORE_EXAMPLES and not self._more_examples:
            return "not compiled on %s cores, to save time: --all-examples does" % os.cpu_count()
        return None

    def start(self) -> None:
        unity = os.path.join(self._folder, "adapter.cc")
        with open(unity, "w", encoding="utf-8") as file:
            # One unit: libtorch's headers take most of the time, and are read once.
            for source in sorted(glob.glob(os.path.join(self._root, "share/cadre/torch/*.cc"))):
                file.write('#include "%s"\n' % source)
        self._results[ADAPTER] = self._object(unity)
        step = [os.path.join(self._root, "src/bench/training", STEP + ".cc")]
        for name, sources in {STEP: step, **sources_of_examples(self._root)}.items():
            if self.problem_of(name) is None:
                self._program(name, sources)

    def result(self, name: str) -> str:
        """Waits for the program, or object, and gives its path. Failed: it does not compile, or not in time."""
        try:
            if name != ADAPTER and self._results[ADAPTER].done() and self._results[ADAPTER].exception():
                raise Skipped("the adapter does not compile")
            return self._results[name].result(timeout=max(self._clock.left(), 0))
        except concurrent.futures.TimeoutError:
            raise Failed("%s is still being compiled" % name) from None

    def _object(self, source: str) -> concurrent.futures.Future:
        if source not in self._objects:
            self._objects[source] = self._compilers.submit(self._compile, source)
        return self._objects[source]

    def _program(self, name: str, sources: list[str]) -> None:
        objects = [self._results[ADAPTER], *map(self._object, sources)]
        self._results[name] = self._linkers.submit(self._link, name, objects)

    def _standard(self) -> str:
        with open(os.path.join(self._torch, "include/torch/csrc/api/include/torch/all.h"), encoding="utf-8") as file:
            return "c++20" if re.search(r"#error C\+\+20", file.read()) else "c++17"

    def _run(self, what: str, argv: list[str]) -> None:
        log = os.path.join(self._folder, what + ".log")
        status = self._programs.run(argv, log, self._clock.left())
        if status != 0:
            raise Failed("%s does not compile: %s" % (what, explanation(log)))

    def _compile(self, source: str) -> str:
        what = re.sub(r"\W", "_", os.path.relpath(source, self._root) if source.startswith(self._root) else os.path.basename(source))
        output = os.path.join(self._folder, what + ".o")
        include = os.path.join(self._torch, "include")
        folders = [os.path.join(self._root, folder) for folder in ("include", "share/cadre/torch", "src", "examples/third_party")]
        theirs = [include, os.path.join(include, "torch/csrc/api/include")]
        self._run(what, [self._machine.compiler, "-std=" + self._standard(), "-O2", "-fPIC", "-w", *("-I" + folder for folder in folders),
                         *("-isystem" + folder for folder in theirs), "-c", source, "-o", output])
        return output

    def _link(self, name: str, objects: list[concurrent.futures.Future]) -> str:
        output = os.path.join(self._folder, name)
        ours, theirs = os.path.join(self._root, "lib"), os.path.join(self._torch, "lib")
        paths = [future.result() for future in objects]
        zlib = ["-lz"] if any(_wants_zlib(path) for path in paths) else []
        # libtorch.so brings the operators of a CUDA build into the process: nothing names them.
        self._run(name, [self._machine.compiler, *paths, "-o", output, "-pthread",
                         "-Wl,--allow-shlib-undefined", "-Wl,-rpath," + ours, "-Wl,-rpath," + theirs, os.path.join(ours, "libcadre.so.0"),
                         "-Wl,--no-as-needed", os.path.join(theirs, "libtorch.so"), "-Wl,--as-needed",
                         os.path.join(theirs, "libtorch_cpu.so"), os.path.join(theirs, "libc10.so"), *zlib])
        return output


def _wants_zlib(path: str) -> bool:
    """Data sets that are compressed are read where zlib's header is."""
    with open(path, "rb") as file:
        return re.search(rb"\0gzopen(64)?\0", file.read()) is not None
