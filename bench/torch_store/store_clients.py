#!/usr/bin/env python3
"""One of the processes that connect many of PyTorch's store clients and pass init_process_group's store barrier with them.

As PyTorch's clients, a thread each, or as sockets that say the same bytes and cost little beside the store (`bare`).

Who serves the store is said by CADRE_TORCH_STORE: the agent, or else rank 0, as PyTorch does it. Rank 0 prints the time
from when all processes were ready to when the last client had passed the barrier.

usage: store_clients.py FOLDER CLIENTS torch|bare
"""

import os
import socket
import struct
import sys
import threading
import time
from datetime import timedelta

import torch.distributed as dist
from torch.distributed import distributed_c10d

RANK, PROCESSES = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
ADDRESS, PORT = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
TIMEOUT = timedelta(minutes=5)


class Clients:
    def __init__(self, count, world):
        self.world = world
        self.passed = []
        self.stores = []
        self.go = threading.Event()
        self.threads = [threading.Thread(target=self.run, args=(RANK * count + i,)) for i in range(count)]
        for thread in self.threads:
            thread.start()

    def run(self, rank):
        self.go.wait()
        store = dist.TCPStore(ADDRESS, PORT, world_size=self.world, is_master=False, timeout=TIMEOUT)
        distributed_c10d._store_based_barrier(rank, store, "default_pg", self.world, TIMEOUT)
        self.passed.append(time.monotonic())
        self.stores.append(store)

    def finish(self):
        start = time.monotonic()
        self.go.set()
        for thread in self.threads:
            thread.join()
        return start, max(self.passed)


def text(value):
    return struct.pack("<Q", len(value)) + value


class BareClients:
    """All say their part before the first answer is read, as ranks of their own would."""

    BARRIER, LAST = b"/store_based_barrier_key:default_pg", b"/store_based_barrier_key:default_pg:last_worker"

    def __init__(self, count, world):
        self.count, self.world = count, world

    def ask(self, question, size):
        for client in self.clients:
            client.sendall(question)
        return [client.recv(size, socket.MSG_WAITALL) for client in self.clients]

    def finish(self):
        start = time.monotonic()
        self.clients = [socket.create_connection((ADDRESS, PORT)) for _ in range(self.count)]
        for client in self.clients:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.ask(struct.pack("<BIBI", 0, 0x3C85F7CE, 13, 7), 4)
        self.ask(b"\x04" + text(b"init/") + struct.pack("<q", 1), 8)
        self.ask(b"\x04" + text(self.BARRIER) + struct.pack("<q", 1), 8)
        counts = self.ask(b"\x04" + text(self.BARRIER) + struct.pack("<q", 0), 8)
        if any(struct.unpack("<q", count)[0] == self.world for count in counts):
            self.clients[0].sendall(b"\x01" + text(self.LAST) + text(b"1"))
        answers = self.ask(b"\x06" + struct.pack("<Q", 1) + text(self.LAST), 1)
        assert answers == [b"\0"] * self.count, answers
        return start, time.monotonic()


def main():
    folder, world, kind = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    # By which the processes meet; the store that is measured has no part in it.
    meeting = dist.FileStore(os.path.join(folder, "meeting"), PROCESSES)
    server = None
    if RANK == 0 and "CADRE_TORCH_STORE" not in os.environ:
        server = dist.TCPStore(ADDRESS, PORT, is_master=True, timeout=TIMEOUT, wait_for_workers=False)
    clients = (BareClients if kind == "bare" else Clients)(world // PROCESSES, world)
    meeting.add("ready", 1)
    while meeting.add("ready", 0) < PROCESSES:
        time.sleep(0.01)
    start, end = clients.finish()
    meeting.set(f"times of {RANK}", f"{start} {end}")
    times = [tuple(map(float, meeting.get(f"times of {rank}").split())) for rank in range(PROCESSES)]
    if RANK == 0:
        seconds = max(end for _, end in times) - min(start for start, _ in times)
        print(f"clients={world} kind={kind} agent={'CADRE_TORCH_STORE' in os.environ} seconds={seconds:.4f}", flush=True)
    # The server stays until all are done.
    meeting.add("done", 1)
    while meeting.add("done", 0) < PROCESSES:
        time.sleep(0.01)
    del server


if __name__ == "__main__":
    main()
