"""The backend "cadre" of torch.distributed beside Gloo, in one process: what each gives for the same input.

usage: backend_script.py CHECK...            as a rank that a launcher started
       backend_script.py fork RANKS CHECK... without a launcher: the ranks are forked here, and meet in a file
       backend_script.py at URL RANK SIZE CHECK... without a launcher: as a rank of several that meet there
"""
import os
import sys
import tempfile
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import ReduceOp
from torch.nn.parallel import DistributedDataParallel

from backend_failures import broken_off, collected, death, late, refused

TIMEOUT = timedelta(seconds=60)
TYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int32, torch.int64, torch.bool)
REDUCTIONS = (ReduceOp.SUM, ReduceOp.AVG, ReduceOp.MIN, ReduceOp.MAX, ReduceOp.PRODUCT, ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR)
BITS = (ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR)


class Beside:
    """Calls with both groups; what they leave in their tensors must be equal."""

    def __init__(self):
        self.rank, self.size, self.compared = dist.get_rank(), dist.get_world_size(), 0
        self.cadre, self.gloo = dist.group.WORLD, dist.new_group(backend="gloo")

    def values(self, kind, *shape, rank=None):
        """Small integers, which every type adds and multiplies without rounding."""
        number = self.rank if rank is None else rank
        count = 1
        for length in shape:
            count *= length
        return ((torch.arange(count) * 7 + number * 3) % 4).to(kind).view(shape)

    def same(self, what, call, tolerance=None):
        """`call` gets a group, and returns tensors."""
        expected, found = call(self.gloo), call(self.cadre)
        assert len(expected) == len(found), what
        for one, other in zip(expected, found):
            equal = torch.equal(one, other) if tolerance is None else torch.allclose(one, other, **tolerance)
            assert equal, "%s: Gloo gives %s, Cadre %s" % (what, one, other)
        self.compared += 1


def reductions(b):
    ops = [(kind, op) for kind in TYPES for op in REDUCTIONS if not (op == ReduceOp.AVG and not kind.is_floating_point)]
    for kind, op in ops:
        if op in BITS and kind.is_floating_point:
            continue

        def all_reduce(group, kind=kind, op=op):
            tensor = b.values(kind, 4, 5)
            dist.all_reduce(tensor, op=op, group=group)
            return [tensor]

        def reduce(group, kind=kind, op=op):
            tensor = b.values(kind, 7)
            dist.reduce(tensor, b.size - 1, op=op, group=group)
            return [tensor] if b.rank == b.size - 1 else []

        b.same("all_reduce %s %s" % (kind, op), all_reduce)
        b.same("reduce %s %s" % (kind, op), reduce)
    for op in (ReduceOp.SUM, ReduceOp.MAX, ReduceOp.PRODUCT):

        def scatter(group, op=op):
            whole, part = torch.empty(3), torch.empty(3)
            dist.reduce_scatter(whole, [b.values(torch.float32, 3) + r for r in range(b.size)], op=op, group=group)
            dist.reduce_scatter_tensor(part, b.values(torch.float32, 3 * b.size), op=op, group=group)
            return [whole, part]

        b.same("reduce_scatter %s" % op, scatter)

    def rows(group):
        """Every other column, which lies in memory in many pieces: Gloo takes them for one, and gets a copy."""
        tensor = b.values(torch.float32, 6, 8)
        even, odd = (tensor[:, ::2], tensor[:, 1::2]) if group is b.cadre else (tensor[:, ::2].contiguous(), tensor[:, 1::2].contiguous())
        dist.all_reduce(even, group=group)
        dist.broadcast(odd, 1, group=group)
        return [even, odd]

    def large(group):
        torch.manual_seed(b.rank)
        tensor = torch.randn(1 << 19)
        dist.all_reduce(tensor, group=group)
        return [tensor]

    def complex_sum(group):
        tensor = torch.complex(b.values(torch.float32, 3), b.values(torch.float32, 3, rank=b.rank + 1))
        dist.all_reduce(tensor, group=group)
        return [tensor]

    def nothing(group):
        tensor = torch.empty(0)
        dist.all_reduce(tensor, group=group)
        return [tensor]

    for what, call in (("in pieces", rows), ("complex", complex_sum), ("of nothing", nothing)):
        b.same(what, call)
    b.same("large", large, {"rtol": 1e-5, "atol": 1e-5})
    bits = torch.randn(1000) * 10**b.rank
    dist.all_reduce(bits)
    of_all = [torch.empty(1000) for _ in range(b.size)]
    dist.all_gather(of_all, bits)
    assert all(torch.equal(bits, other) for other in of_all), "the ranks have different bits"


def copies(b):
    for kind in TYPES:

        def every_copy(group, kind=kind):
            own, sent = b.values(kind, 2, 3), b.values(kind, 3)
            dist.broadcast(sent, b.size - 1, group=group)
            each = [torch.empty(2, 3, dtype=kind) for _ in range(b.size)]
            dist.all_gather(each, own, group=group)
            return [sent] + each

        def whole_copies(group, kind=kind):
            own, together = b.values(kind, 2, 3), torch.empty(2 * b.size, 3, dtype=kind)
            dist.all_gather_into_tensor(together, own, group=group)
            gathered = [torch.empty(2, 3, dtype=kind) for _ in range(b.size)] if b.rank == 1 else None
            dist.gather(own, gathered, dst=1, group=group)
            part = torch.empty(3, dtype=kind)
            dist.scatter(part, [b.values(kind, 3, rank=r) for r in range(b.size)] if b.rank == 0 else None, src=0, group=group)
            return [together, part] + (gathered or [])

        b.same("copies of %s" % kind, every_copy)
        b.same("gather and scatter of %s" % kind, whole_copies)
    for kind in (torch.int16, torch.complex64):  # which Gloo does not have, or not for each of them
        each = [torch.empty(5, dtype=kind) for _ in range(b.size)]
        dist.gather(b.values(kind, 5), each if b.rank == 0 else None)
        for part in each:
            dist.broadcast(part, 0)
        assert all(torch.equal(part, b.values(kind, 5, rank=r)) for r, part in enumerate(each)), each
    objects = [None] * b.size
    dist.all_gather_object(objects, {"rank": b.rank, "text": "x" * b.rank})
    assert objects == [{"rank": r, "text": "x" * r} for r in range(b.size)], objects


def messages(b):
    def even(group):
        out = torch.empty(2 * b.size)
        dist.all_to_all_single(out, b.values(torch.float32, 2 * b.size), group=group)
        return [out]

    def uneven(group):  # rank r gives r + s elements to rank s
        given = [b.rank + s for s in range(b.size)]
        out = torch.empty(sum(given), 2)
        dist.all_to_all_single(out, b.values(torch.float32, sum(given), 2), given, given, group=group)
        return [out]

    b.same("all_to_all_single", even)
    b.same("all_to_all_single of different sizes", uneven)
    out = [torch.empty(3) for _ in range(b.size)]
    dist.all_to_all(out, [torch.full((3,), float(10 * b.rank + s)) for s in range(b.size)])
    assert [part[0].item() for part in out] == [10.0 * r + b.rank for r in range(b.size)]
    right, left = (b.rank + 1) % b.size, (b.rank - 1) % b.size
    came = torch.zeros(4)
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, torch.full((4,), float(b.rank)), right), dist.P2POp(dist.irecv, came, left)]):
        work.wait()
    assert came[0].item() == left
    # A message that waits for its receiver keeps no collective from going on.
    sent = dist.isend(torch.tensor([b.rank]), right, tag=5)
    dist.all_reduce(torch.ones(1))
    dist.all_to_all(out, [torch.ones(3)] * b.size)
    number = torch.zeros(1, dtype=torch.int64)
    dist.recv(number, left, tag=5)
    sent.wait()
    assert number.item() == left
    assert sent.get_future().done()
    # Nor does one for which nobody waits.
    before = threads()
    for _ in range(50):
        dist.isend(torch.ones(1), right, tag=6)
    assert threads() <= before + 2, (before, threads())
    for _ in range(50):
        dist.recv(torch.zeros(1), left, tag=6)


def threads():
    return len(os.listdir("/proc/self/task"))


def groups(b):
    ranks = list(range(0, b.size, 2))
    everywhere = [dist.new_group([r, r + 1]) for r in range(0, b.size, 2)]
    evens, pair = dist.new_group(ranks), everywhere[b.rank // 2]
    if b.rank in ranks:
        total = torch.tensor([b.rank])
        dist.all_reduce(total, group=evens)
        assert total.item() == sum(ranks)
    one = torch.tensor([b.rank])
    dist.broadcast(one, b.rank // 2 * 2 + 1, group=pair)
    assert one.item() == b.rank // 2 * 2 + 1
    alone = dist.new_group([b.rank], use_local_synchronization=True)
    dist.all_reduce(one, group=alone)
    local = dist.new_group([b.rank // 2 * 2, b.rank // 2 * 2 + 1], use_local_synchronization=True)
    dist.all_reduce(one, op=ReduceOp.MAX, group=local)
    dist.destroy_process_group(pair)
    dist.barrier()


def asynchronous(b):
    """Starting waits for nobody; what was dropped is finished all the same."""
    store = dist.distributed_c10d._get_default_store()
    tensors = [torch.full((1 << 18,), float(i)) for i in range(4)]
    if b.rank == 0:
        works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
        assert not works[0].get_future().done()
        store.set("started", "")
    else:
        store.get("started")
        works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    assert torch.equal(works[3].get_future().wait()[0], tensors[3])
    for i, work in enumerate(works):
        work.wait()
        assert tensors[i][-1].item() == i * b.size
    pieces = torch.ones(1 << 10, 2)[:, 1]
    dist.all_reduce(pieces, async_op=True)
    dist.barrier()
    deadline = time.monotonic() + 30
    while pieces[0].item() != b.size:
        assert time.monotonic() < deadline, "nobody finished it"
        time.sleep(0.001)
    with dist._coalescing_manager(async_ops=True) as several:
        for tensor in tensors:
            dist.all_reduce(tensor)
    several.wait()
    assert tensors[1][0].item() == b.size**2


def polled(b):
    """The tensors have what came when is_completed() says so, of a PyTorch that asks the backend."""
    each = [torch.full((1 << 12,), -1.0) for _ in range(b.size)]
    work = dist.all_gather(each, torch.full((1 << 12,), float(b.rank)), async_op=True)
    deadline = time.monotonic() + 30
    while not work.is_completed():
        assert time.monotonic() < deadline, "it never was"
        time.sleep(0.001)
    assert [part[-1].item() for part in each] == list(range(b.size)), each
    assert work.is_success()


def elsewhere(b):
    """A group whose first rank is not on the machine that serves the store."""
    group = dist.new_group([1, 2], backend="cadre")
    if b.rank > 0:
        total = torch.ones(1000)
        dist.all_reduce(total, group=group)
        assert total[-1].item() == 2
    dist.barrier(group=b.gloo)


def slow(b):
    """The last rank comes just when the others, which wait in slices of a tenth of a second, look up."""
    late = torch.ones(1 << 16)
    for turn in range(30):
        dist.barrier()
        begin = time.monotonic()
        if b.rank == b.size - 1:
            while time.monotonic() - begin < 0.0995 + turn % 10 * 1e-4:
                pass
        dist.all_reduce(late, op=ReduceOp.MAX)


def trained(group, rank, steps=20):
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 256), nn.BatchNorm1d(256), nn.Linear(256, 4))
    model = DistributedDataParallel(model, process_group=group, bucket_cap_mb=0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    torch.manual_seed(100 + rank)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(torch.randn(16, 32)), torch.randint(4, (16,))).backward()
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


def ddp(b):
    b.same("DDP", lambda group: trained(group, b.rank), {"rtol": 1e-4, "atol": 1e-6})
    for parameter in trained(b.cadre, b.rank):
        each = [torch.empty_like(parameter) for _ in range(b.size)]
        dist.all_gather(each, parameter)
        assert all(torch.equal(parameter, other) for other in each), "the replicas differ"


def fsdp(b):
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    def steps(group):
        torch.manual_seed(4)
        model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 8))
        mesh = DeviceMesh.from_group(group, "cpu")
        for layer in model:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        torch.manual_seed(200 + b.rank)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(8, 16)).pow(2).mean().backward()
            optimizer.step()
        return [parameter.full_tensor().detach() for parameter in model.parameters()]

    b.same("FSDP2", steps, {"rtol": 1e-4, "atol": 1e-6})


CHECKS = {check.__name__: check for check in (reductions, copies, messages, groups, asynchronous, polled, elsewhere, slow, late, refused, broken_off, collected, ddp, fsdp, death)}


def as_before_2_15():
    """PyTorch in which Python derives from no Backend: a group is whole then."""
    from torch._C import _distributed_c10d as c10d

    class NoBackend:
        def __init__(self, *_):
            raise TypeError("No constructor defined!")

    original, c10d.Backend = c10d.Backend, NoBackend
    from cadre._torch_group import Group

    c10d.Backend = original
    assert issubclass(Group, c10d.ProcessGroup)


def run(checks, **how):
    torch.set_num_threads(1)
    dist.init_process_group(os.environ.get("BACKEND", "cadre"), timeout=TIMEOUT, **how)
    beside = Beside()
    for check in checks:
        CHECKS[check](beside)
    print("rank %d of %d: equal in %d comparisons" % (beside.rank, beside.size, beside.compared), flush=True)
    if "death" not in checks:
        dist.destroy_process_group()


def fork(size, checks):
    with tempfile.TemporaryDirectory() as folder:
        children = []
        for rank in range(size):
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    run(checks, init_method="file://%s/store" % folder, rank=rank, world_size=size)
                    status = 0
                except BaseException:
                    import traceback

                    traceback.print_exc()
                finally:
                    sys.stdout.flush()
                    sys.stderr.flush()
                    os._exit(status)
            children.append(child)
        ended = [os.waitpid(child, 0)[1] for child in children]
    return [status for status in ended if status != 0 and not (status == 9 and "death" in checks)]


if __name__ == "__main__":
    if "WHOLE_GROUP" in os.environ:
        as_before_2_15()
    if sys.argv[1] == "fork":
        sys.exit(1 if fork(int(sys.argv[2]), sys.argv[3:]) else 0)
    if sys.argv[1] == "at":
        url, rank, size = sys.argv[2:5]
        run(sys.argv[5:], init_method=url, rank=int(rank), world_size=int(size))
    else:
        run(sys.argv[1:])
