"""The backend "cadre" of torch.distributed: collectives between CPU tensors over the runtime's shared memory and sockets.

PyTorch that looks for the entry points torch.distributed.backends finds it by itself; for others `import cadre.torch_backend`
comes before torch.distributed.init_process_group("cadre").
"""
from __future__ import annotations

import torch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["register"]

_NEEDED = (2, 1)


def _make(options: Any, backend_options: Any = None) -> Any:
    from cadre._torch_group import Group

    return Group.of(options)


def register() -> None:
    """Makes "cadre" known to torch.distributed; again does nothing."""
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    if version < _NEEDED:
        raise ImportError("cadre: the backend of torch.distributed needs PyTorch 2.1 or newer; this is " + torch.__version__)
    if not torch.distributed.is_available():
        raise ImportError("cadre: this PyTorch %s was built without torch.distributed" % torch.__version__)
    from torch.distributed import distributed_c10d

    if "CADRE" not in distributed_c10d.Backend._plugins:
        # For cuda too, or PyTorch's own error about a CUDA tensor would not say what to do.
        distributed_c10d.Backend.register_backend("cadre", _make, extended_api=True, devices=["cpu", "cuda"])


register()
