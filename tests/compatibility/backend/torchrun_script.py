"""What torchrun starts: all ranks add through the process group, once more in their second life.

torchrun_script.py BACKEND [exit|kill FILE]: in the first life of all, rank 3 exits with 9, or kills its torchrun; FILE is made then.
torchrun_script.py BACKEND all_exit: all exit with 9.
"""
import os
import signal
import sys

import torch
import torch.distributed as dist

dist.init_process_group(sys.argv[1])
rank, size = dist.get_rank(), dist.get_world_size()
value = torch.full((1,), rank + 1.0)
dist.all_reduce(value)
if sys.argv[2:] == ["all_exit"]:
    os._exit(9)
first = len(sys.argv) > 2 and not os.path.exists(sys.argv[3])
dist.barrier()  # all have looked before the file is made
if first:
    if rank == 3:
        open(sys.argv[3], "w").close()
        if sys.argv[2] == "kill":
            os.kill(os.getppid(), signal.SIGKILL)
        os._exit(9)
    signal.pause()  # healthy, as torchrun of the other node sees it
print(
    "rank %d of %d on node %s: sum %d, life %s, agent %s\n"
    % (rank, size, os.environ["GROUP_RANK"], value.item(), os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ.get("CADRE_AGENT")),
    end="",
)
dist.destroy_process_group()
