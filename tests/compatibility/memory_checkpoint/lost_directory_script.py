"""Saves with cadre.checkpoint while the directory that states also go to is gone, and says what was said of it.

usage: lost_directory_script.py replicated|own STEPS DIE_AT DIRECTORY
"""

import os
import sys
import time
import warnings

import cadre

REPLICATED, STEPS, DIRECTORY = sys.argv[1] == "replicated", int(sys.argv[2]), sys.argv[4]


def main():
    cadre.checkpoint.spill(DIRECTORY, every=0)
    cadre.checkpoint.latest(replicated=REPLICATED)
    os.rmdir(DIRECTORY)
    open(DIRECTORY, "w").close()
    deadline = time.monotonic() + 60
    step = 0
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        last = None
        while last is None or step < last:
            cadre.checkpoint.save({"step": step}, step, replicated=REPLICATED)
            cadre.checkpoint.wait()
            step += 1
            assert time.monotonic() < deadline
            if said and last is None:
                last = step + STEPS
    state, _ = cadre.checkpoint.latest(replicated=REPLICATED)
    assert state["step"] == step - 1, state
    print(f"said {len(said)} times: {said[0].category.__name__}: {said[0].message}", flush=True)


if __name__ == "__main__":
    main()
