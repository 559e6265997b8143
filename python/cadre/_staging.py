"""What GPUs have of a state, on its way to the host: copied on a stream of its own, while the GPUs go on computing."""
from __future__ import annotations

TYPE_CHECKING = False  # typing takes longer to import than all of this
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Tuple

_ALIGNMENT = 64  # of each tensor, for any type


class Staging:
    """Memory of the host that GPUs write to at the full speed of the bus, as large as the largest state so far.

    It holds one state at a time: begin() writes over what it gave before, which somebody must have read by then.
    """

    def __init__(self) -> None:
        self._memory: Any = None
        self._is_locked = False
        self._streams: Dict[Any, Any] = {}  # by device

    def begin(self, tensors: List[Any]) -> Tuple[List[Any], Dict[Any, Any]]:
        """Starts copies of what these hold now. Gives tensors of the host, and by device the event after which they have it.

        Until then the sources must stay, and live: their memory may be given to nobody else.
        """
        import torch

        begins, total = [], 0
        for tensor in tensors:
            begins.append(total)
            total += -(-tensor.numel() * tensor.element_size() // _ALIGNMENT) * _ALIGNMENT
        memory = self._room(total)
        devices = {tensor.device for tensor in tensors}
        for device in devices:
            if device not in self._streams:
                self._streams[device] = torch.cuda.Stream(device)
            self._streams[device].wait_stream(torch.cuda.current_stream(device))
        copies = []
        for tensor, begin in zip(tensors, begins):
            size = tensor.numel() * tensor.element_size()
            copy = memory[begin : begin + size].view(tensor.dtype).view(tensor.shape)
            with torch.cuda.stream(self._streams[tensor.device]):
                copies.append(copy.copy_(tensor, non_blocking=True))
        return copies, {device: self._streams[device].record_event() for device in devices}

    def _room(self, size: int) -> Any:
        import torch

        if self._memory is not None and self._memory.numel() >= size:
            return self._memory
        runtime = torch.cuda.cudart()
        if self._is_locked:
            runtime.cudaHostUnregister(self._memory.data_ptr())
        # PyTorch's own page-locked memory comes in powers of two.
        self._memory = torch.empty(max(size, 1), dtype=torch.uint8)
        self._is_locked = int(runtime.cudaHostRegister(self._memory.data_ptr(), self._memory.numel(), 0)) == 0
        if not self._is_locked:
            # Where the system locks no more pages the copies are as slow as any others, and as right. PyTorch would say
            # with its next kernel that this has failed.
            try:
                torch.zeros(1, device="cuda")
            except RuntimeError:
                pass
        return self._memory
