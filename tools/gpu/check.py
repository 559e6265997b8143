"""Checks Cadre on this machine: see gpu_check."""
from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from types import FrameType

import report
from compiling import Compilation
from context import Context, Part
from machine import Machine, glibc_problem
from parts import all_parts
from running import Clock, Failed, Programs, Skipped

USAGE, CANNOT = 64, 69
# For the table and the file at the end.
SPARE_SECONDS = 5


def minutes(text: str) -> float:
    value = float(text)
    if not 0 < value <= 600:
        raise ValueError
    return value


def parse(arguments: list[str], parts: list[Part]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="gpu_check", formatter_class=argparse.RawDescriptionHelpFormatter,
                                     description="Checks Cadre on this machine's GPUs, with the PyTorch of an interpreter that is there.")
    parser.add_argument("--python", default=sys.executable, help="the interpreter with PyTorch [the one that runs this: %(default)s]")
    parser.add_argument("--output", default="gpu_check_output", help="folder for logs and gpu_check.json [%(default)s]")
    parser.add_argument("--json", help="file for the results [gpu_check.json in the folder of --output]")
    parser.add_argument("--minutes", type=minutes, default=8, help="what would take longer is skipped [%(default)s]")
    parser.add_argument("--only", metavar="TEXT", action="append", default=[],
                        help="only the parts with TEXT in their name; may be repeated")
    parser.add_argument("--all-examples", action="store_true", help="compile all examples, however few cores there are")
    parser.add_argument("--list", action="store_true", help="print the names of the parts and end")
    options = parser.parse_args(arguments)
    for text in options.only:
        if not any(text in part.name for part in parts):
            parser.error("no part has \"%s\" in its name: see --list" % text)
    return options


def run_part(part: Part, context: Context) -> report.Row:
    begin = time.monotonic()
    result, reason, figures = report.PASSED, "", {}
    try:
        if part.needs:
            part.needs(context.machine)
        left = context.clock.left() - SPARE_SECONDS
        if left < part.usual:
            raise Skipped("%.0f s of %g minutes are left, and it takes about %.0f s: see --minutes"
                          % (max(left, 0), context.clock.minutes, part.usual))
        figures = part.run(context, part)
    except Skipped as why:
        result, reason = report.SKIPPED, str(why)
    except Failed as why:
        result, reason = report.FAILED, str(why)
    return report.Row(part.name, result, time.monotonic() - begin, reason, figures)


def version_of(root: str) -> str:
    """Of the archive. Raises OSError and CalledProcessError."""
    said = subprocess.run([os.path.join(root, "bin/cadre"), "version"], check=True, timeout=30, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE)
    return said.stdout.decode().split()[1]


def introduce(machine: Machine, version: str) -> None:
    gpus = machine.gpus()
    print("cadre %s, %s" % (version, machine.description()["system"]))
    print("GPU: %s" % (", ".join(gpu["name"] for gpu in gpus) + "; driver %s, CUDA %s" % (machine.driver["version"], machine.driver["cuda"])
                       if gpus else machine.driver["error"]))
    print("PyTorch: %s" % (machine.torch.get("error") or "%s of %s, NCCL %s" % (machine.torch["version"], machine.python,
                                                                                 machine.torch["nccl"])), flush=True)


def check(options: argparse.Namespace, parts: list[Part], root: str, programs: Programs) -> int:
    clock = Clock(options.minutes)
    output = os.path.abspath(options.output)
    compiled = os.path.join(output, "compiled")
    try:
        os.makedirs(compiled, exist_ok=True)
        version = version_of(root)
    except (OSError, subprocess.SubprocessError) as error:
        print("gpu_check: cannot begin: %s" % (glibc_problem() or error), file=sys.stderr)
        return CANNOT
    try:
        machine = Machine(programs, options.python, output, 60)
    except Failed as why:
        print("gpu_check: %s" % why, file=sys.stderr)
        return USAGE
    introduce(machine, version)
    context = Context(root, output, machine, programs, clock)
    if "error" not in machine.torch and machine.compiler:
        context.compilation = Compilation(root, compiled, machine, programs, clock, options.all_examples)
        if context.compilation.problem() is None:
            context.compilation.start()
    rows = []
    for part in parts:
        if not options.only or any(text in part.name for text in options.only):
            rows.append(run_part(part, context))
            report.print_row(rows[-1])
    programs.end_all()
    said = report.notes(rows, len(machine.gpus()))
    for note in said:
        print(note)
    file = options.json or os.path.join(output, "gpu_check.json")
    try:
        report.write(file, version, machine.description(), rows, clock.taken(), said)
    except OSError as error:
        print("gpu_check: cannot write %s: %s" % (file, error.strerror), file=sys.stderr)
        return CANNOT
    print("written to %s; %d of %d parts skipped, each says why" % (file, report.count(rows, report.SKIPPED), len(rows)))
    print("%d passed, %d failed" % (report.count(rows, report.PASSED), report.count(rows, report.FAILED)))
    return 1 if report.count(rows, report.FAILED) else 0


def interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main(root: str, arguments: list[str]) -> int:
    parts = all_parts()
    options = parse(arguments, parts)
    if options.list:
        print("\n".join(part.name for part in parts))
        return 0
    programs = Programs()
    signal.signal(signal.SIGTERM, interrupt)
    try:
        return check(options, parts, root, programs)
    except KeyboardInterrupt:
        print("gpu_check: interrupted", file=sys.stderr)
        return 130
    finally:
        programs.end_all()
