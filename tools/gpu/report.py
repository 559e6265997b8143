"""The table, the notes under it, and the JSON file."""
from __future__ import annotations

import dataclasses
import json
import os

PASSED, FAILED, SKIPPED = "passed", "FAILED", "skipped"
# Of the JSON file; another one where a reader of it would have to change.
SCHEMA = 1

NOTE_ONE_RANK = ("One rank beside DDP shows what DataParallel costs, and nothing of communication: with one GPU there is nobody to exchange "
                 "gradients with. That takes two GPUs.")
NOTE_SHARED = ("Two ranks on one GPU take turns on it and exchange through the host's memory, or with nccl over sockets: it says nothing of "
               "what NCCL does between GPUs.")
NOTE_TINY = "The tiny steps on the CPU show that both sides train; they are no measurement."


@dataclasses.dataclass
class Row:
    name: str
    result: str
    seconds: float
    reason: str = ""
    figures: dict = dataclasses.field(default_factory=dict)

    def text(self) -> str:
        return self.reason or ", ".join(_figure(name, value) for name, value in self.figures.items())


def _figure(name: str, value: object) -> str:
    words = name.replace("_", " ")
    if isinstance(value, dict):
        return words + ": " + ", ".join("%s %s" % (key.replace("_", " "), _number(each)) for key, each in value.items())
    return value if name in ("road", "named") else "%s %s" % (words, _number(value))


def _number(value: object) -> str:
    return "%.4g" % value if isinstance(value, float) else str(value)


def print_row(row: Row) -> None:
    print("%-52s %-8s %6.1f  %s" % (row.name, row.result, row.seconds, row.text()), flush=True)


def notes(rows: list[Row], gpus: int) -> list[str]:
    passed = [row.name for row in rows if row.result == PASSED]
    found = []
    if gpus == 1 and any("one rank per GPU" in name for name in passed):
        found.append(NOTE_ONE_RANK)
    if any("two ranks on one GPU" in name for name in passed):
        found.append(NOTE_SHARED)
    if any(name.startswith("tiny ") for name in passed):
        found.append(NOTE_TINY)
    return found


def count(rows: list[Row], result: str) -> int:
    return sum(row.result == result for row in rows)


def write(path: str, version: str, machine: dict, rows: list[Row], seconds: float, said: list[str]) -> None:
    content = {"schema": SCHEMA, "cadre": version, "machine": machine, "seconds": round(seconds, 1), "passed": count(rows, PASSED),
               "failed": count(rows, FAILED), "skipped": count(rows, SKIPPED), "notes": said,
               "parts": [{**dataclasses.asdict(row), "result": row.result.lower()} for row in rows]}
    with open(path + ".new", "w", encoding="utf-8") as file:
        json.dump(content, file, indent=2)
        file.write("\n")
    os.replace(path + ".new", path)
