"""What backend_script.py checks of calls that are refused, break off or are dropped, and of ranks that do not come or die."""
import gc
import os
import threading
import time
import weakref
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import ReduceOp
from torch.nn.parallel import DistributedDataParallel


def late(b):
    """Who does not come within the group's timeout is named; other groups go on."""
    ranks = list(range(b.size))[::-1]
    hasty = dist.new_group(ranks, timeout=timedelta(seconds=1), sort_ranks=False)
    if b.rank != 0:
        try:
            dist.all_reduce(torch.ones(4), group=hasty)
        except RuntimeError as error:
            said = "of the group of ranks %s" % ", ".join(map(str, ranks))
            assert said in str(error) and "rank %d" % (b.size - 1) in str(error), str(error)
        else:
            raise AssertionError("nobody was missed")
    dist.barrier()


def refused(b):
    backend = b.cadre._get_backend(torch.device("cpu"))
    calls = (
        (lambda: backend.allreduce([torch.empty(2, device="meta")], dist.AllreduceOptions()), "is for CPU tensors"),
        (lambda: dist.all_reduce(torch.ones(2, dtype=torch.int32), op=ReduceOp.AVG), "no reduction AVG of torch.int32"),
        (lambda: dist.all_gather_into_tensor(torch.empty(3), torch.empty(2)), "expected %d times as many out" % b.size),
        (lambda: dist.recv(torch.empty(1)), "give src"),
    )
    for call, said in calls:
        try:
            call()
        except (RuntimeError, TypeError, ValueError, NotImplementedError) as error:
            assert said in str(error) and "\n" not in str(error).split("Exception raised")[0].strip(), str(error)
        else:
            raise AssertionError("nothing was said of " + said)
    dist.barrier()  # it goes on


def broken_off(b):
    """Of a call that is refused nothing is under way, also where only its last part was wrong; of one that breaks off, what is
    under way keeps its memory."""
    parts = [torch.zeros(3) for _ in range(b.size)]
    try:
        dist.all_to_all([torch.zeros(5 if r == b.rank else 3) for r in range(b.size)], [torch.ones(3)] * b.size)
    except ValueError:
        pass
    else:
        raise AssertionError("nothing was said of the sizes")
    dist.all_to_all(parts, [torch.full((3,), float(b.rank))] * b.size)
    assert [part[0].item() for part in parts] == list(range(b.size)), parts
    store = dist.distributed_c10d._get_default_store()
    tensor = torch.ones(1 << 16)
    if b.rank == 0:
        alive = weakref.ref(tensor)
        begin_one_and_break_off(b.cadre._get_backend(torch.device("cpu")), tensor)
        del tensor
        assert alive() is not None
        store.set("broken off", "")
        deadline = time.monotonic() + 30
        while alive() is not None:
            assert time.monotonic() < deadline, "nobody let go of it"
            time.sleep(0.001)
    else:
        store.get("broken off")
        dist.all_reduce(tensor)
        assert tensor[-1].item() == b.size
    dist.barrier()


def begin_one_and_break_off(group, tensor):
    operation = group._begin("all_reduce", [tensor])
    group._all_reduce(operation, tensor, ReduceOp.SUM)
    operation.starts.append(lambda: 1 // 0)
    try:
        operation.begin()
    except ZeroDivisionError:
        pass


class CollectingThread(threading.Thread):
    def start(self):
        gc.collect()
        super().start()


def collected(b):
    """Of two operations that are dropped, the second by the collection of memory that the first one's hand-over comes to."""
    group = dist.new_group(backend="cadre")
    store = dist.distributed_c10d._get_default_store()
    tensors = [torch.ones(1 << 16), torch.ones(1 << 16)]
    if b.rank == 0:
        gc.disable()
        works = [dist.all_reduce(tensor, group=group, async_op=True) for tensor in tensors]
        loop = [works.pop()]
        loop.append(loop)
        del loop
        plain, threading.Thread = threading.Thread, CollectingThread
        del works[0]
        threading.Thread = plain
        gc.enable()
        store.set("collected", "")
    else:
        store.get("collected")
        for tensor in tensors:
            dist.all_reduce(tensor, group=group)
    dist.barrier(group=group)
    assert [tensor[-1].item() for tensor in tensors] == [b.size] * 2, tensors


def death(b):
    """The last rank is killed while the others wait for it, by themselves and within DDP."""
    model = DistributedDataParallel(nn.Linear(4, 4), process_group=b.cadre)
    store = dist.distributed_c10d._get_default_store()
    if b.rank == b.size - 1:
        store.wait(["waits/%d" % r for r in range(b.size - 1)])
        time.sleep(0.3)  # until they are inside: the time that is measured begins behind it
        store.set("killed", str(time.monotonic()))
        os.kill(os.getpid(), 9)
    store.set("waits/%d" % b.rank, "")
    try:
        if b.rank == 0:
            model(torch.ones(2, 4)).sum().backward()
        else:
            dist.all_reduce(torch.ones(16 + 2))  # as long as the bucket
    except RuntimeError as error:
        late = time.monotonic() - float(store.get("killed"))
        kind = "DistBackendError" if isinstance(error, dist.DistBackendError) else "RuntimeError"
        print("rank %d heard after %.3f s, %s: %s" % (b.rank, late, kind, str(error).splitlines()[0]), flush=True)
    else:
        raise AssertionError("nobody said that a rank is gone")
