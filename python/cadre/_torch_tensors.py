"""Tensors as memory of the runtime's: which types it reduces, and how the others become one of them."""
from __future__ import annotations

import torch
from torch.distributed import ReduceOp

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, List, Tuple

# The numbers of cadre.h.
FLOAT32, FLOAT64, FLOAT16, INT32, INT64, UINT8, BFLOAT16 = range(7)
SUM, MAX, MIN, AVERAGE = range(4)

_TYPES = {
    torch.float32: FLOAT32,
    torch.float64: FLOAT64,
    torch.float16: FLOAT16,
    torch.int32: INT32,
    torch.int64: INT64,
    torch.uint8: UINT8,
    torch.bfloat16: BFLOAT16,
}
# Computed in a wider type, which gives the same bits as in their own.
_WIDER = {torch.int8: torch.int32, torch.int16: torch.int32}
_COMPLEX = {torch.complex64: FLOAT32, torch.complex128: FLOAT64}
_NATIVE = ((ReduceOp.SUM, SUM), (ReduceOp.AVG, AVERAGE), (ReduceOp.MAX, MAX), (ReduceOp.MIN, MIN))
# Of bools: whether any is true, whether all are.
_OF_BOOLS = ((ReduceOp.SUM, MAX), (ReduceOp.MAX, MAX), (ReduceOp.BOR, MAX), (ReduceOp.MIN, MIN), (ReduceOp.PRODUCT, MIN), (ReduceOp.BAND, MIN))
# What the runtime does not have: all ranks' elements are gathered, and each rank folds them in the order of ranks.
_FOLDED = (
    (ReduceOp.PRODUCT, torch.mul),
    (ReduceOp.BAND, torch.bitwise_and),
    (ReduceOp.BOR, torch.bitwise_or),
    (ReduceOp.BXOR, torch.bitwise_xor),
)


def check(tensor: Any) -> None:
    if tensor.device.type == "cuda":
        raise RuntimeError(
            'cadre: the backend "cadre" is for CPU tensors, and this one is on %s: init_process_group("cpu:cadre,cuda:nccl")' % tensor.device
        )
    if tensor.device.type != "cpu":
        raise RuntimeError('cadre: the backend "cadre" is for CPU tensors, and this one is on %s' % tensor.device)
    if tensor.layout != torch.strided:
        raise RuntimeError("cadre: collectives are for dense tensors, and this one is %s: to_dense() makes it one" % tensor.layout)


class Staged:
    """A tensor's elements in one piece, of a type that the runtime has: the tensor's own memory where that will do."""

    def __init__(self, tensor: Any, kind: int, memory: Any) -> None:
        self.tensor, self.kind, self.memory = tensor, kind, memory

    @property
    def pointer(self) -> int:
        return self.memory.data_ptr()

    @property
    def count(self) -> int:
        return self.memory.numel()

    @property
    def is_copy(self) -> bool:
        return self.memory.data_ptr() != self.tensor.data_ptr()

    def back(self) -> None:
        """The elements into the tensor."""
        memory = self.memory
        if self.tensor.is_complex():
            memory = torch.view_as_complex(memory.view(self.tensor.shape + (2,)))
        self.tensor.copy_(memory.view(self.tensor.shape))


def _one_piece(tensor: Any) -> Any:
    check(tensor)
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    return tensor.contiguous()


def as_bytes(tensor: Any) -> Staged:
    """To be copied, whatever its type; its memory stays the tensor's where that is in one piece."""
    piece = _one_piece(tensor)
    return _Bytes(tensor, UINT8, piece)


class _Bytes(Staged):
    @property
    def count(self) -> int:
        return self.memory.numel() * self.memory.element_size()

    def back(self) -> None:
        self.tensor.copy_(self.memory)


def to_reduce(tensor: Any, op: Any) -> Tuple[Staged, int]:
    """And the operation's number; TypeError for what cannot be reduced so."""
    piece, kind = _one_piece(tensor), tensor.dtype
    if kind == torch.bool:
        for known, number in _OF_BOOLS:
            if op == known:
                return Staged(tensor, UINT8, piece.view(torch.uint8)), number
        raise _refused(tensor, op)
    for known, number in _NATIVE:
        if op != known:
            continue
        if number == AVERAGE and not (tensor.is_floating_point() or tensor.is_complex()):
            raise _refused(tensor, op)
        if kind in _TYPES:
            return Staged(tensor, _TYPES[kind], piece), number
        if kind in _WIDER:
            return Staged(tensor, INT32, piece.to(_WIDER[kind])), number
        if kind in _COMPLEX and number in (SUM, AVERAGE):
            return Staged(tensor, _COMPLEX[kind], torch.view_as_real(piece)), number
        break
    raise _refused(tensor, op)


def fold_of(tensor: Any, op: Any) -> Any:
    """How two ranks' elements become one, for operations that the runtime does not have; None: it has it."""
    if tensor.dtype == torch.bool:
        return torch.bitwise_xor if op == ReduceOp.BXOR else None
    for known, fold in _FOLDED:
        if op == known:
            if fold is not torch.mul and (tensor.is_floating_point() or tensor.is_complex()):
                raise _refused(tensor, op)
            return fold
    return None


def folded(parts: List[Any], fold: Callable[[Any, Any], Any]) -> Any:
    total = parts[0]
    for part in parts[1:]:
        total = fold(total, part)
    return total


def _refused(tensor: Any, op: Any) -> TypeError:
    name = str(getattr(op, "op", op)).split(".")[-1].split(":")[0]
    return TypeError("cadre: the backend has no reduction %s of %s; convert the tensor first" % (name, tensor.dtype))
