"""Trains with cadre.checkpoint in every step, and is killed once: rank 1, or its whole node.

usage: replicated_script.py replicated|own STEPS DIE_AT [node]
"""

import os
import signal
import sys

import torch
import torch.distributed as dist

import cadre
from kill_node import kill_node
from training import RANK, tell_end, train

FIRST = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
REPLICATED, STEPS, DIE_AT = sys.argv[1] == "replicated", int(sys.argv[2]), int(sys.argv[3])


def refuse_forked_child():
    """A data loader's process must not write over the state of the worker that it came from."""
    child = os.fork()
    if child == 0:
        try:
            cadre.checkpoint.save({}, STEPS + 1, replicated=REPLICATED)
        except cadre.FailedPreconditionError:
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0


def small_tensors_hold_up_nobody():
    """An optimizer on a GPU has its counters on the host: they are copied at once, and its step does not wait for the rest."""
    small, large = torch.zeros(100), torch.zeros(1 << 20)
    for state, must_stay in (({"step": small}, False), ({"step": small, "weight": large}, True)):
        assert cadre._state.Copy(state, cadre._staging.Staging()).must_stay == must_stay, state.keys()


def die_once(step):
    if FIRST and step == DIE_AT and RANK == 1:
        if sys.argv[4:] == ["node"]:
            kill_node()
        os.kill(os.getpid(), signal.SIGKILL)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    # Statistics of batches change in the forward pass, all else in the optimizer's step.
    layers = [torch.nn.Linear(256, 256), torch.nn.BatchNorm1d(256), torch.nn.Linear(256, 1)]
    model = train(layers, STEPS, REPLICATED, die_once)
    refuse_forked_child()
    small_tensors_hold_up_nobody()
    if not REPLICATED or os.environ["LOCAL_RANK"] == "0":
        print(f"rank {RANK} copies {'behind' if cadre._memory._memory._behind else 'at once'}", flush=True)
    tell_end(model)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
