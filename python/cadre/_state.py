"""A training's state, a structure of dicts and lists with tensors in it, as a pickle with the tensors' bytes behind it."""
from __future__ import annotations

import io
import pickle
import sys

from cadre._errors import FailedPreconditionError, InvalidArgumentError

TYPE_CHECKING = False  # typing takes longer to import than all of this
if TYPE_CHECKING:
    from typing import Any, Dict, Iterator, List, Optional, Tuple

    from cadre._staging import Staging

# Smaller tensors are copied at once: what a forward pass changes, as statistics of batches, is small.
_COPIED_AT_ONCE = 1 << 16
_LENGTH_BYTES = 8  # in front of the pickle, which is in front of the tensors


class Torn(FailedPreconditionError):
    """Something changed a tensor while it was copied; the state before stays."""


class Copy:
    """A state on its way into memory, with its tensors as they are now.

    Which of them must stay as they are, and for how long:
    - large ones of the host, until write() has returned, which copies them; `must_stay` says whether there are any,
    - those of GPUs, until somebody calls may_change(): GPUs copy theirs behind the training, and what they are given from then on
      waits for that, while the host goes on,
    - others not at all: they are copied at once.
    One that was changed all the same makes write() raise Torn.
    """

    def __init__(self, state: Any, staging: Staging) -> None:
        import threading

        self._tensors: List[Tuple[Any, int]] = []
        self._lock = threading.Lock()
        self.must_stay = False
        self._sources: List[Tuple[Any, int]] = []  # the GPUs' tensors, until they may change
        self._events: Dict[Any, Any] = {}  # by device: it has copied what it has
        self._torn = False
        torch = sys.modules.get("torch")
        owner = self

        class Pickler(pickle.Pickler):
            def persistent_id(self, value: Any) -> Any:
                return None if torch is None else owner._take(torch, value)

        file = io.BytesIO()
        Pickler(file, protocol=4).dump(state)
        self._pickle = file.getvalue()
        self._stage(staging)

    def _stage(self, staging: Staging) -> None:
        on_devices = [i for i, (tensor, _) in enumerate(self._tensors) if tensor.device.type == "cuda"]
        if not on_devices:
            return
        self._sources = [self._tensors[i] for i in on_devices]
        copies, self._events = staging.begin([tensor for tensor, _ in self._sources])
        for i, copy in zip(on_devices, copies):
            self._tensors[i] = copy, copy._version

    def may_change(self) -> None:
        """Tensors of GPUs are about to change, by what the current streams are given from now on."""
        import torch

        with self._lock:
            for device, event in self._events.items():
                torch.cuda.current_stream(device).wait_event(event)
            self._release_sources()

    def _release_sources(self) -> None:
        """Looks a last time whether they stayed as they were."""
        self._torn = self._torn or any(tensor._version != version for tensor, version in self._sources)
        self._sources = []

    def _await_devices(self) -> None:
        for event in self._events.values():
            event.synchronize()
        with self._lock:
            self._release_sources()

    def _take(self, torch: Any, value: Any) -> Optional[Tuple[str, Tuple[int, ...]]]:
        """What stands for a tensor in the pickle: its bytes come behind, in the order of the calls."""
        if type(value) not in (torch.Tensor, torch.nn.Parameter) or value.layout != torch.strided or value.is_quantized:
            return None  # pickled as it is; what a DTensor has of its own here comes by in its turn
        tensor = value.detach()
        if tensor.device.type not in ("cpu", "cuda"):
            tensor = tensor.cpu()
        if not tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg():
            tensor = tensor.resolve_conj().resolve_neg().contiguous()
        elif tensor.numel() * tensor.element_size() <= _COPIED_AT_ONCE:
            tensor = tensor.clone()
        elif value.device.type == "cpu":
            self.must_stay = True
        self._tensors.append((tensor, tensor._version))
        return str(tensor.dtype).split(".")[1], tuple(tensor.shape)

    def write(self, library: Any, handle: Any, step: int) -> None:
        """Blocks while it copies, without Python's lock."""
        import ctypes

        self._await_devices()
        head = len(self._pickle).to_bytes(_LENGTH_BYTES, "little") + self._pickle
        count = 1 + len(self._tensors)
        parts, sizes = (ctypes.c_void_p * count)(), (ctypes.c_size_t * count)()
        parts[0], sizes[0] = ctypes.cast(ctypes.c_char_p(head), ctypes.c_void_p), len(head)
        for i, (tensor, _) in enumerate(self._tensors, 1):
            parts[i], sizes[i] = tensor.data_ptr(), tensor.numel() * tensor.element_size()
        library.cadre_memory_write(handle, parts, sizes, count)
        if self._torn or any(tensor._version != version for tensor, version in self._tensors):
            raise Torn(
                "a tensor was changed while step %d was copied: only an optimizer's step may do that, or code "
                "that runs after cadre.checkpoint.wait()" % step
            )
        library.cadre_memory_commit(handle, step)


def restored(view: memoryview, into: Any = None) -> Any:
    """The state, in the tensors of `into` where that has them at the same place, else in new ones on the CPU."""
    targets = {} if into is None else _targets(view, into)

    def tensor_of(index: int, name: str, shape: Tuple[int, ...], begin: int) -> Any:
        import torch

        tensor = targets.get(index)
        if tensor is None:
            tensor = torch.empty(shape, dtype=getattr(torch, name))
        size = tensor.numel() * tensor.element_size()
        if size > 0:
            plain = tensor.detach()
            if not tensor.is_contiguous():
                plain = torch.empty(shape, dtype=tensor.dtype)
            plain.reshape(-1).view(torch.uint8).copy_(torch.frombuffer(view, dtype=torch.uint8, count=size, offset=begin))
            if not tensor.is_contiguous():
                tensor.detach().copy_(plain)
        return tensor

    return _load(view, tensor_of)


def _load(view: memoryview, tensor_of: Any) -> Any:
    end = _LENGTH_BYTES + int.from_bytes(view[:_LENGTH_BYTES], "little")

    class Unpickler(pickle.Unpickler):
        index, begin = 0, end  # of the next tensor

        def persistent_load(self, described: Any) -> Any:
            import torch

            name, shape = described
            tensor = tensor_of(self.index, name, shape, self.begin)
            self.index += 1
            self.begin += torch.Size(shape).numel() * torch.empty(0, dtype=getattr(torch, name)).element_size()
            return tensor

    return Unpickler(io.BytesIO(view[_LENGTH_BYTES:end])).load()


def _local(value: Any) -> Any:
    """What a DTensor has of its own here; another tensor is its own."""
    return getattr(value, "_local_tensor", value)


def _children(value: Any) -> Iterator[Tuple[Any, Any]]:
    if isinstance(value, dict):
        yield from value.items()
    elif isinstance(value, (list, tuple)):
        yield from enumerate(value)


def _targets(view: memoryview, into: Any) -> Dict[int, Any]:
    """By the number of a saved tensor: that of `into` which takes its place."""
    import torch

    numbers: Dict[int, int] = {}
    kept: List[Any] = []  # or an id would stand for another one

    def without_memory(index: int, name: str, shape: Tuple[int, ...], begin: int) -> Any:
        kept.append(torch.empty(shape, dtype=getattr(torch, name), device="meta"))
        numbers[id(kept[-1])] = index
        return kept[-1]

    found: Dict[int, Any] = {}

    def pair(saved: Any, target: Any, path: str) -> None:
        if isinstance(target, torch.Tensor):
            if not isinstance(saved, torch.Tensor):
                raise _differs(path, "a tensor", "none")
            mine, theirs = _local(target), _local(saved)
            here, there = ("%s %s" % (str(one.dtype)[6:], list(one.shape)) for one in (mine, theirs))
            if here != there:
                raise _differs(path, here, there)
            found[numbers[id(theirs)]] = mine
            return
        by_key = dict(_children(saved))
        for key, value in _children(target):
            if key in by_key:
                pair(by_key[key], value, "%s[%r]" % (path, key))
            elif _has_tensor(value):
                raise _differs("%s[%r]" % (path, key), "a tensor", "nothing of that name")

    pair(_load(view, without_memory), into, "into")
    return found


def _has_tensor(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor) or any(_has_tensor(child) for _, child in _children(value))


def _differs(path: str, here: str, there: str) -> InvalidArgumentError:
    return InvalidArgumentError("%s is %s, but the saved state has %s there: give the structure that was saved" % (path, here, there))
