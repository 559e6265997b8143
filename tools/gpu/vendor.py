"""Where the archive's programs find the libraries of NVIDIA's that PyTorch brought along."""
from __future__ import annotations

import glob
import os

from machine import Machine

# The variable of ours, and the file's name.
_LIBRARIES = {"CADRE_NCCL_LIBRARY": "libnccl.so.2", "CADRE_CUDART_LIBRARY": "libcudart.so.*"}


def vendor_libraries(machine: Machine) -> dict[str, str]:
    """What PyTorch's own folder, or NVIDIA's packages beside it, have; what the environment names already stays."""
    folder = machine.torch.get("folder")
    found = {}
    for variable, name in _LIBRARIES.items():
        if not folder or variable in os.environ:
            continue
        paths = [path for pattern in ("../nvidia/*/lib/", "lib/") for path in sorted(glob.glob(os.path.join(folder, pattern, name)))]
        if paths:
            found[variable] = os.path.realpath(paths[0])
    return found
