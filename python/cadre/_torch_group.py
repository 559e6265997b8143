"""A process group of torch.distributed over a communicator of the runtime."""
from __future__ import annotations

import ctypes
import itertools

import torch
from torch._C import _distributed_c10d as c10d

from cadre._torch_connect import Communicators
from cadre._torch_tensors import UINT8, as_bytes, fold_of, folded, to_reduce
from cadre._torch_work import BackendError, Finisher, MessagesFinisher, Operation, Work

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, List

# Until they are shut down: where only C++ holds one, as with TORCH_DISTRIBUTED_DEBUG=DETAIL, its methods would be lost.
_groups: "set[Any]" = set()
_TAG = 0  # of the messages of collectives, which come in the order of the calls


def _base() -> Any:
    """Backend, which leaves other devices to other backends, where Python can derive from it; else a whole ProcessGroup."""
    try:
        c10d.Backend(0, 1)
    except TypeError:
        return c10d.ProcessGroup
    return c10d.Backend


class Group(_base()):  # type: ignore[misc]
    @classmethod
    def of(cls, options: Any) -> Any:
        ranks = [int(rank) for rank in options.global_ranks_in_group]
        return cls(options.store, str(options.group_id), options.group_rank, options.group_size, ranks, options.timeout)

    def __init__(self, store: Any, name: str, rank: int, size: int, world_ranks: List[int], timeout: Any) -> None:
        super().__init__(rank, size)
        self._rank, self._size, self._calls = rank, size, itertools.count(1)
        self._sequence, self._finisher, self._messages_finisher = 0, Finisher(), MessagesFinisher()
        # Errors count ranks within the group.
        self._of = " of the group of ranks %s" % ", ".join(map(str, world_ranks)) if world_ranks else ""
        if hasattr(c10d.Backend, "Options"):
            try:
                self._options = c10d.Backend.Options("cadre", timeout=timeout)
            except TypeError:
                self._options = None
        self._communicators: Any = Communicators(store, name, rank, size, world_ranks, int(timeout.total_seconds() * 1000))
        self._lib = self._communicators._lib
        _groups.add(self)

    # What PyTorch asks of a backend.

    def getBackendName(self) -> str:
        return "cadre"

    @property
    def options(self) -> Any:
        return self._options

    def _get_sequence_number_for_group(self) -> int:
        return self._sequence

    def _set_sequence_number_for_group(self) -> None:
        pass

    def abort(self) -> None:
        if self._communicators is not None:
            self._communicators.abort()

    def shutdown(self) -> None:
        communicators, self._communicators = self._communicators, None
        if communicators is not None:
            communicators.free()
            self._finisher.stop()
            self._messages_finisher.stop()
            _groups.discard(self)

    # How an operation is made.

    def _begin(self, name: str, tensors: List[Any], finisher: Any = None) -> Operation:
        if self._communicators is None:
            raise BackendError("cadre: %s: this process group was destroyed" % name)
        self._sequence += 1
        return Operation(self._lib, name, self._of, tensors, finisher or self._finisher)

    def _start(self, operation: Operation, name: str, *arguments: Any, messages: bool = False) -> None:
        """As soon as the whole operation is known."""
        communicator = self._communicators.messages() if messages else self._communicators.calls
        call = getattr(self._lib, "cadre_" + name)

        def start() -> Any:
            work = ctypes.c_void_p()
            call(communicator, *arguments, ctypes.byref(work))
            return work

        operation.starts.append(start)

    def _keep(self, operation: Operation, staged: Any, is_output: bool) -> None:
        operation.memory.append(staged.memory)
        if is_output and staged.is_copy:
            operation.afterwards.append(staged.back)

    def _gather_all(self, operation: Operation, tensor: Any) -> Any:
        """Where the elements of all ranks will be, in one piece each."""
        given = as_bytes(tensor)
        together = torch.empty((self._size, tensor.numel()), dtype=tensor.dtype)
        operation.memory += [given.memory, together]
        self._start(operation, "all_gather", given.pointer, together.data_ptr(), given.count, UINT8)
        return together

    def _fold(self, operation: Operation, tensor: Any, fold: Any, to: Any, part: Any = slice(None)) -> None:
        together = self._gather_all(operation, tensor)

        def step() -> None:
            to.copy_(folded(list(together[:, part]), fold).view(to.shape))

        operation.afterwards.append(step)

    # Reductions.

    def _all_reduce(self, operation: Operation, tensor: Any, op: Any) -> None:
        fold = fold_of(tensor, op)
        if fold is not None:
            self._fold(operation, tensor, fold, tensor)
            return
        staged, number = to_reduce(tensor, op)
        self._keep(operation, staged, True)
        self._start(operation, "all_reduce", staged.pointer, staged.count, staged.kind, number)

    def allreduce(self, tensors: List[Any], opts: Any) -> Work:
        operation = self._begin("all_reduce", tensors)
        for tensor in tensors:
            self._all_reduce(operation, tensor, opts.reduceOp)
        return Work(operation)

    def allreduce_coalesced(self, tensors: List[Any], opts: Any) -> Work:
        return self.allreduce(tensors, opts)

    def reduce(self, tensors: List[Any], opts: Any) -> Work:
        operation = self._begin("reduce", tensors)
        root = opts.rootRank
        for tensor in tensors:
            fold = fold_of(tensor, opts.reduceOp)
            if fold is not None:
                self._fold(operation, tensor, fold, tensor if self._rank == root else tensor.clone())
                continue
            staged, number = to_reduce(tensor, opts.reduceOp)
            self._keep(operation, staged, self._rank == root)
            self._start(operation, "reduce", staged.pointer, staged.count, staged.kind, number, root)
        return Work(operation)

    def _reduce_scatter(self, operation: Operation, output: Any, given: Any, op: Any) -> None:
        """`given`: the parts of all ranks, one behind the other."""
        if given.numel() != output.numel() * self._size or given.dtype != output.dtype:
            raise ValueError(
                "cadre: reduce_scatter: %d elements of %s in, %d of %s out; expected %d times as many in, of one type"
                % (given.numel(), given.dtype, output.numel(), output.dtype, self._size)
            )
        fold = fold_of(output, op)
        if fold is not None:
            begin = self._rank * output.numel()
            self._fold(operation, given, fold, output, slice(begin, begin + output.numel()))
            return
        (source, number), (target, _) = to_reduce(given, op), to_reduce(output, op)
        self._keep(operation, source, False)
        self._keep(operation, target, True)
        self._start(operation, "reduce_scatter", source.pointer, target.pointer, target.count, target.kind, number)

    def reduce_scatter(self, outputs: List[Any], inputs: List[List[Any]], opts: Any) -> Work:
        operation = self._begin("reduce_scatter", outputs)
        for output, parts in zip(outputs, inputs):
            self._reduce_scatter(operation, output, torch.cat([part.reshape(-1) for part in parts]), opts.reduceOp)
        return Work(operation)

    def reduce_scatter_single(self, output: Any, given: Any, opts: Any) -> Work:
        return self.reduce_scatter_single_coalesced([output], [given], opts)

    def reduce_scatter_single_coalesced(self, outputs: List[Any], inputs: List[Any], opts: Any) -> Work:
        operation = self._begin("reduce_scatter_tensor", outputs)
        for output, given in zip(outputs, inputs):
            self._reduce_scatter(operation, output, given, opts.reduceOp)
        return Work(operation)

    # Copies.

    def broadcast(self, tensors: List[Any], opts: Any) -> Work:
        operation = self._begin("broadcast", tensors)
        for tensor in tensors:
            staged = as_bytes(tensor)
            self._keep(operation, staged, self._rank != opts.rootRank)
            self._start(operation, "broadcast", staged.pointer, staged.count, UINT8, opts.rootRank)
        return Work(operation)

    def allgather(self, outputs: List[List[Any]], inputs: List[Any], opts: Any) -> Work:
        operation = self._begin("all_gather", [tensor for each in outputs for tensor in each])
        for each, given in zip(outputs, inputs):
            for tensor in each:
                _expect_same("all_gather", tensor, given)
            together = self._gather_all(operation, given)
            for tensor, part in zip(each, together):
                operation.afterwards.append(lambda tensor=tensor, part=part: tensor.copy_(part.view(tensor.shape)))
        return Work(operation)

    def allgather_coalesced(self, outputs: List[List[Any]], inputs: List[Any], opts: Any) -> Work:
        # A list for each rank here, and one for each input there.
        return self.allgather([list(each) for each in zip(*outputs)], inputs, opts)

    def all_gather_single(self, output: Any, given: Any, opts: Any) -> Work:
        return self.all_gather_single_coalesced([output], [given], opts)

    def all_gather_single_coalesced(self, outputs: List[Any], inputs: List[Any], opts: Any) -> Work:
        operation = self._begin("all_gather_into_tensor", outputs)
        for output, given in zip(outputs, inputs):
            if output.numel() != given.numel() * self._size or given.dtype != output.dtype:
                raise ValueError(
                    "cadre: all_gather_into_tensor: %d elements of %s in, %d of %s out; expected %d times as many out, of one type"
                    % (given.numel(), given.dtype, output.numel(), output.dtype, self._size)
                )
            source, target = as_bytes(given), as_bytes(output)
            self._keep(operation, source, False)
            self._keep(operation, target, True)
            self._start(operation, "all_gather", source.pointer, target.pointer, source.count, UINT8)
        return Work(operation)

    # What is made of messages.

    def _pass(self, operation: Operation, name: str, tensor: Any, peer: int, tag: int = _TAG, messages: bool = True) -> None:
        """One message: "send" to that rank or "receive" from it."""
        staged = as_bytes(tensor)
        self._keep(operation, staged, name == "receive")
        self._start(operation, name, staged.pointer, staged.count, UINT8, peer, tag, messages=messages)

    def _exchange(self, operation: Operation, outputs: List[Any], inputs: List[Any]) -> None:
        """outputs[r] from rank r, inputs[r] to rank r; empty ones are no messages."""
        for rank, tensor in enumerate(outputs):
            if rank == self._rank:
                _expect_same(operation._name, tensor, inputs[rank])
                tensor.copy_(inputs[rank].view(tensor.shape))
            elif tensor.numel() > 0:
                self._pass(operation, "receive", tensor, rank)
        for rank, tensor in enumerate(inputs):
            if rank != self._rank and tensor.numel() > 0:
                self._pass(operation, "send", tensor, rank)

    def gather(self, outputs: List[List[Any]], inputs: List[Any], opts: Any) -> Work:
        operation, root = self._begin("gather", [tensor for each in outputs for tensor in each]), opts.rootRank
        for index, given in enumerate(inputs):
            if self._rank == root:
                for tensor in outputs[index]:
                    _expect_same("gather", tensor, given)
                nothing = [given if rank == root else given.new_empty(0) for rank in range(self._size)]
                self._exchange(operation, outputs[index], nothing)
            elif given.numel() > 0:
                self._pass(operation, "send", given, root)
        return Work(operation)

    def scatter(self, outputs: List[Any], inputs: List[List[Any]], opts: Any) -> Work:
        operation, root = self._begin("scatter", outputs), opts.rootRank
        for index, output in enumerate(outputs):
            if self._rank == root:
                nothing = [output if rank == root else output.new_empty(0) for rank in range(self._size)]
                for tensor in inputs[index]:
                    _expect_same("scatter", output, tensor)
                self._exchange(operation, nothing, inputs[index])
            elif output.numel() > 0:
                self._pass(operation, "receive", output, root)
        return Work(operation)

    def alltoall(self, outputs: List[Any], inputs: List[Any], opts: Any) -> Work:
        operation = self._begin("all_to_all", outputs)
        self._exchange(operation, outputs, inputs)
        return Work(operation)

    def all_to_all_single(self, output: Any, given: Any, output_sizes: List[int], input_sizes: List[int], opts: Any) -> Work:
        operation = self._begin("all_to_all_single", [output])
        self._exchange(operation, self._parts(output, output_sizes), self._parts(given, input_sizes))
        return Work(operation)

    def _parts(self, tensor: Any, sizes: List[int]) -> List[Any]:
        if not sizes and tensor.shape[0] % self._size != 0:
            raise ValueError("cadre: all_to_all_single: %d rows do not divide among %d ranks" % (tensor.shape[0], self._size))
        return list(tensor.split(list(sizes) or [tensor.shape[0] // self._size] * self._size))

    # The program's own messages.

    def send(self, tensors: List[Any], to: int, tag: int) -> Work:
        return self._message(self._begin("send", tensors, self._messages_finisher), "send", to, tag)

    def recv(self, tensors: List[Any], from_rank: int, tag: int) -> Work:
        return self._message(self._begin("recv", tensors, self._messages_finisher), "receive", from_rank, tag)

    def _message(self, operation: Operation, name: str, peer: int, tag: int) -> Work:
        for tensor in operation.tensors:
            self._pass(operation, name, tensor, peer, tag, messages=False)
        return Work(operation)

    def recv_anysource(self, tensors: List[Any], tag: int) -> Work:
        raise NotImplementedError("cadre: recv() needs to know from whom: give src")

    def barrier(self, opts: Any = None) -> Work:
        operation = self._begin("barrier", [])
        self._start(operation, "barrier")
        return Work(operation)

    # As PyTorch before 2.15 calls them.
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single


# What a backend may be asked to have besides; PyTorch 2.15 finds no end where a class in Python does not say.
for _name, _of_base in vars(c10d.Backend).items():
    if isinstance(_of_base, property) and _name.lstrip("_").startswith("supports_"):
        setattr(Group, _name, False)
if not issubclass(Group, c10d.Backend):
    # A whole process group has no backends in it, which would have been asked.
    Group._get_backend = lambda self, device: self
    Group._set_group_name = lambda self, name: setattr(self, "_group_name", name)
    Group.group_name = property(lambda self: self._group_name)


def _expect_same(name: str, tensor: Any, other: Any) -> None:
    if tensor.numel() != other.numel() or tensor.dtype != other.dtype:
        raise ValueError(
            "cadre: %s: %d elements of %s and %d of %s; expected as many, of one type"
            % (name, tensor.numel(), tensor.dtype, other.numel(), other.dtype)
        )
