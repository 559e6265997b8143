#!/usr/bin/env python3
"""Accelerate's launchers for notebooks and for debugging.

usage: accelerate_launcher.py notebook|debug
"""

import sys

from accelerate import Accelerator, debug_launcher, notebook_launcher


def train():
    import torch

    accelerator = Accelerator(cpu=True)
    total = int(accelerator.gather(torch.ones(1)).sum().item())
    print(f"trained: rank {accelerator.process_index} of {total}", flush=True)


if __name__ == "__main__":
    launcher = {"notebook": notebook_launcher, "debug": debug_launcher}[sys.argv[1]]
    launcher(train, num_processes=2)
