"""What a machine does that loses its power: nothing of its node is left, nor what it had in memory."""

import os
import shutil
import signal


def kill_node():
    """Kills the launcher that this worker comes from, all between them, and itself."""
    processes = [os.getpid()]
    while os.path.basename(os.readlink("/proc/%d/exe" % processes[-1])) != "cadre":
        with open("/proc/%d/stat" % processes[-1]) as stat:
            processes.append(int(stat.read().rpartition(")")[2].split()[1]))
    memory = os.path.realpath(os.environ["CADRE_CHECKPOINT_MEMORY"])
    for process in reversed(processes[1:]):
        os.kill(process, signal.SIGKILL)
    shutil.rmtree(memory)
    os.kill(os.getpid(), signal.SIGKILL)
