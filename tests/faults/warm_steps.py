#!/usr/bin/env python3
"""A worker that says how it was started, and lives until there is a file FOLDER/done.

usage: warm_steps.py FOLDER
"""

import asyncio
import decimal
import os
import sys
import time

with open("/proc/self/environ", "rb") as file:
    warm = b"CADRE_WARM_START=template" in file.read()
print("rank", os.environ["RANK"], "life", os.environ["TORCHELASTIC_RESTART_COUNT"], "is", "warm" if warm else "plain", "pid",
      os.getpid(), flush=True)
while not os.path.exists(sys.argv[1] + "/done"):
    time.sleep(0.02)
