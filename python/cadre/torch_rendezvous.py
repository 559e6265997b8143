"""The rendezvous backend "cadre" of torchrun: its nodes are the workers of the job that starts it, one torchrun each.

Whoever starts the torchruns (cadre run, srun, mpirun, or a shell by RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT) has said which
node is which, so that torchrun needs no endpoint. PyTorch that looks for the entry points torchrun.handlers finds it by itself.
"""
from __future__ import annotations

import hashlib
import os
import socket
import sys
import time
import uuid
from datetime import timedelta

from torch.distributed import PrefixStore, TCPStore
from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    RendezvousTimeoutError,
)

from cadre._errors import CadreError, DeadlineExceededError, NotFoundError
from cadre._worker import worker

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Optional

__all__ = ["Rendezvous", "handler"]

_JOIN_SECONDS = 600  # PyTorch's own default
_LOOK_SECONDS = 2.0  # until a node that waits for the others looks whether one has ended
_NOTICE_SECONDS = 10.0
_ARRIVED = "cadre/arrived_for_the_next_round"
# They would make workers of the programs that torchrun starts, with the rank of torchrun itself.
_OF_THIS_WORKER = (
    "CADRE_AGENT",
    "CADRE_CHECKPOINT_FILE",
    "CADRE_CHECKPOINT_MEMORY",
    "CADRE_GENERATION",
    "CADRE_PROGRESS_FD",
    "CADRE_PROGRESS_FILE",
    "CADRE_STACK_FILE",
    "CADRE_STANDS_BY",
    "CADRE_TOKEN_FILE",
)


class Rendezvous(RendezvousHandler):
    """All nodes of the job meet in rounds: the first, and one whenever the workers of a node have failed.

    In each round rank 0 serves a store of PyTorch's, for the torchruns and for the programs that they start. The others learn its address
    from the worker's store.
    """

    def __init__(self, params: RendezvousParameters) -> None:
        self._worker = worker()
        for name in _OF_THIS_WORKER:
            os.environ.pop(name, None)
        nodes = self._worker.world_size
        if not params.min_nodes <= nodes <= params.max_nodes:
            raise ValueError(
                "cadre: torchrun was given --nnodes %d:%d, but the job that starts it has %d worker%s, each of which is a node: "
                "give --nnodes %d" % (params.min_nodes, params.max_nodes, nodes, "s"[: nodes != 1], nodes)
            )
        self._run_id, self._round, self._round_id = params.run_id, 0, ""
        # Several may run in one job, each with an id, which may be longer than a key of the store.
        self._run = hashlib.sha256(params.run_id.encode()).hexdigest()[:16]
        seconds = params.get_as_int("join_timeout", _JOIN_SECONDS)
        if seconds is None or seconds < 1:
            raise ValueError("cadre: --rdzv-conf join_timeout=%s: expected seconds, 1 or more" % seconds)
        self._seconds = seconds
        self._host = params.local_addr or os.environ.get("MASTER_ADDR") or socket.getfqdn()
        self._store: Optional[TCPStore] = None

    def get_backend(self) -> str:
        return "cadre"

    def get_run_id(self) -> str:
        return self._run_id

    @property
    def use_agent_store(self) -> bool:
        """That of the round outlives the programs that torchrun starts in it."""
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        """RendezvousTimeoutError names the ranks of the nodes that have not come within join_timeout."""
        this, before, timeout = self._worker, self._store, timedelta(seconds=self._seconds)
        self._round += 1
        name = "torchrun/%s/%d" % (self._run, self._round)
        try:
            if before is not None:
                before.add(_ARRIVED, 1)  # the others look there whether they have to come, too
            if this.rank == 0:
                self._store = TCPStore(self._host, 0, is_master=True, wait_for_workers=False, timeout=timeout)
                this.store.set(name, ("%s %d %s" % (uuid.uuid4().hex, self._store.port, self._host)).encode())
            self._await_all(name)  # until then rank 0 has `before`, too
            self._round_id, port, host = this.store.get(name, 0).decode().split(" ", 2)
            if this.rank != 0:
                self._store = TCPStore(host, int(port), is_master=False, timeout=timeout)
        except DeadlineExceededError as error:
            raise RendezvousTimeoutError("cadre: %s" % self._absent(error)) from error
        except (CadreError, RuntimeError) as error:  # RuntimeError: PyTorch's, of a TCPStore
            raise RendezvousConnectionError("cadre: round %d of the rendezvous: %s" % (self._round, error)) from error
        return RendezvousInfo(PrefixStore("torchrun", self._store), this.rank, this.world_size, RendezvousStoreInfo(host, int(port)))

    def _absent(self, error: Exception) -> str:
        said = str(error).rsplit('": ', 1)[-1]  # behind the barrier's name
        return "round %d of the rendezvous %r: %s" % (self._round, self._run_id[:40], said)

    def _await_all(self, name: str) -> None:
        until, notice = time.monotonic() + self._seconds, time.monotonic() + _NOTICE_SECONDS
        while True:
            left = max(0.0, until - time.monotonic())
            try:
                return self._worker.barrier(name, min(left, _LOOK_SECONDS))
            except DeadlineExceededError as error:
                if time.monotonic() >= notice:
                    notice = until
                    print("cadre: torchrun waits: " + self._absent(error), file=sys.stderr, flush=True)
                rank = self._ended()
                if rank is not None:
                    raise RendezvousClosedError("cadre: torchrun of rank %s has ended" % rank) from None
                if left <= _LOOK_SECONDS:
                    raise

    def num_nodes_waiting(self) -> int:
        """How many nodes are in the next round already."""
        if self._store is None:
            return 0
        try:
            return int(self._store.add(_ARRIVED, 0))
        except RuntimeError as error:
            raise RendezvousConnectionError("cadre: torchrun of rank 0 does not answer: %s" % error) from error

    def _ended(self) -> Optional[str]:
        """The rank of a node that takes no part in a further round."""
        try:
            return self._worker.store.get("torchrun/ended/" + self._round_id, 0).decode() if self._round_id else None
        except NotFoundError:
            return None

    def is_closed(self) -> bool:
        return self._ended() is not None

    def set_closed(self) -> None:
        if self._round_id:
            self._worker.store.set("torchrun/ended/" + self._round_id, b"%d" % self._worker.rank)

    def shutdown(self) -> bool:
        try:
            self.set_closed()
        except CadreError:  # who serves the store has ended before, which the others see, too
            return False
        return True


def handler() -> Callable[[RendezvousParameters], RendezvousHandler]:
    """What PyTorch calls for the entry point."""
    return Rendezvous
