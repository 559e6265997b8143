"""The communicators of a process group: how its ranks find each other."""
from __future__ import annotations

import ctypes
import os
import socket

from cadre._errors import CadreError
from cadre._library import library
from cadre._worker import _interruptibly, worker

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, List, Optional

_ADDRESS_KEY = "cadre/address"  # in the store that PyTorch gives to the group
# Of the default group, where Cadre did not start this process; the subgroups' members are counted in it.
_world: Optional[_Meeting] = None


class _Meeting:
    """A worker that was connected by what the store of a process group says."""

    def __init__(self, lib: Any, store: Any, rank: int, size: int, timeout_ms: int) -> None:
        address = "127.0.0.1:1"  # a rank alone listens nowhere
        if size > 1 and rank == 0:
            address = _free_address(_own_host(store))
            store.set(_ADDRESS_KEY, address)
        elif size > 1:
            address = store.get(_ADDRESS_KEY).decode()
        handle = ctypes.c_void_p()
        _interruptibly(lambda: lib.cadre_worker_connect_at(rank, size, address.encode(), timeout_ms, ctypes.byref(handle)))
        self.handle, self.serves, self._lib = handle, rank == 0 and size > 1, lib

    def end(self) -> None:
        """Rank 0 waits for the others, a few seconds at most, which nobody should wait for here."""
        if self.serves:
            import threading

            threading.Thread(target=self._lib.cadre_worker_free, args=(self.handle,)).start()
        else:
            self._lib.cadre_worker_free(self.handle)


def _own_host(store: Any) -> str:
    """This machine as those see it who reach what serves the group's store; loopback where that is a file."""
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    host = getattr(store, "host", None) or os.environ.get("MASTER_ADDR")
    if not host:
        return "127.0.0.1"
    kind, _, _, _, server = socket.getaddrinfo(host, 1, type=socket.SOCK_DGRAM)[0]
    with socket.socket(kind, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((server[0], 0) + server[2:])
            return host  # by the name that the others know it by
        except OSError:
            probe.connect(server)  # sends nothing
            return str(probe.getsockname()[0])


def _free_address(host: str) -> str:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.bind(("", 0))
        port = probe.getsockname()[1]
    return ("[%s]:%d" if ":" in host else "%s:%d") % (host, port)


class Communicators:
    """Of one process group: one for what its programs call, and one for the messages that some collectives are made of."""

    def __init__(self, store: Any, name: str, rank: int, size: int, world_ranks: List[int], timeout_ms: int) -> None:
        global _world
        self._lib, self._timeout_ms = library(), timeout_ms
        self._name, self._is_default, self._own_meeting = "torch/" + name, not world_ranks, None  # type: Any
        self.handles: List[Any] = []
        if os.environ.get("CADRE_AGENT") and size > 1:
            self._worker, self.ranks = _of_agent(rank, size, world_ranks)
        elif _world is not None and not self._is_default:
            self._worker, self.ranks = _world.handle, world_ranks
        else:
            self._own_meeting = _Meeting(self._lib, store, rank, size, timeout_ms)
            self._worker, self.ranks = self._own_meeting.handle, list(range(size))
            if self._is_default:
                _world = self._own_meeting
        self._messages: Optional[Any] = None
        self.calls = self._connect("")

    def _connect(self, purpose: str) -> Any:
        handle, members = ctypes.c_void_p(), (ctypes.c_int * len(self.ranks))(*self.ranks)
        name = (self._name + purpose).encode()
        call = self._lib.cadre_communicator_connect_group
        _interruptibly(lambda: call(self._worker, name, members, len(members), self._timeout_ms, ctypes.byref(handle)))
        self.handles.append(handle)
        return handle

    def messages(self) -> Any:
        """Connected by the first collective that needs it, on all ranks, so that a program's own messages do not come between."""
        if self._messages is None:
            self._messages = self._connect("/messages")
        return self._messages

    def abort(self) -> None:
        for handle in self.handles:
            self._lib.cadre_communicator_abort(handle)

    def free(self) -> None:
        global _world
        handles, self.handles = self.handles, []
        for handle in handles:
            self._lib.cadre_communicator_free(handle)
        if self._own_meeting is not None:
            if _world is self._own_meeting:
                _world = None
            self._own_meeting.end()
            self._own_meeting = None


def _of_agent(rank: int, size: int, world_ranks: List[int]) -> Any:
    this = worker()
    ranks = world_ranks or list(range(size))
    if ranks[rank] != this.rank or (not world_ranks and size != this.world_size):
        raise CadreError(
            "cadre: the process group counts this process as rank %d of %d, Cadre started it as rank %d of %d: give "
            "init_process_group no rank and no world_size" % (ranks[rank], size, this.rank, this.world_size)
        )
    return this._handle, ranks
