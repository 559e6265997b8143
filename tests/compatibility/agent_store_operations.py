#!/usr/bin/env python3
"""Every operation of torch.distributed.TCPStore against the store that Cadre's agent serves, as its client sees them.

usage: agent_store_operations.py, as two ranks
"""

import os
import socket
import sys
import threading
import time
from datetime import timedelta

import torch.distributed as dist

RANK = int(os.environ["RANK"])
ADDRESS, PORT = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])


def client(timeout=60):
    return dist.TCPStore(ADDRESS, PORT, is_master=False, timeout=timedelta(seconds=timeout), wait_for_workers=False)


def fails(error, function, *arguments):
    start = time.monotonic()
    try:
        function(*arguments)
    except error:
        return time.monotonic() - start
    raise AssertionError(f"{function.__name__}{arguments} did not fail")


def plain_operations(store):
    store.set("a", "value")
    assert store.get("a") == b"value"
    store.set("a", b"\x00\xff" * 500000)
    assert store.get("a") == b"\x00\xff" * 500000
    store.set("empty", "")
    assert store.get("empty") == b""
    assert store.add("n", 5) == 5 and store.add("n", -7) == -2 and store.get("n") == b"-2"
    assert store.compare_set("c", "missing", "x") == b"missing" and not store.check(["c"])
    assert store.compare_set("c", "", "x") == b"x"
    assert store.compare_set("c", "other", "y") == b"x"
    assert store.compare_set("c", "x", "y") == b"y"
    assert store.check(["a", "c"]) and not store.check(["a", "none"])
    keys = store.num_keys()
    assert store.delete_key("c") and not store.delete_key("c")
    assert store.num_keys() == keys - 1
    store.append("p", "one")
    store.append("p", "two")
    assert store.get("p") == b"onetwo"
    store.multi_set(["m1", "m2"], ["1", "2"])
    assert store.multi_get(["m2", "m1"]) == [b"2", b"1"]
    assert sorted(store.list_keys())[:3] == ["a", "empty", "m1"], store.list_keys()
    assert store.has_extended_api()


def queues(store):
    fails(dist.QueueEmptyError, store.queue_pop, "q", False)
    store.queue_push("q", "x")
    store.queue_push("q", "y")
    assert store.queue_len("q") == 2 and store.check(["q"])
    assert store.queue_pop("q") == b"x" and store.queue_pop("q", False) == b"y"
    assert store.queue_len("q") == 0 and not store.check(["q"])
    # One that waits gets what another one pushes.
    got = []
    reader = threading.Thread(target=lambda: got.append(client().queue_pop("later")))
    reader.start()
    store.queue_push("later", "z")
    reader.join()
    assert got == [b"z"]


def waits(store):
    store.wait(["a", "n"])
    assert 0.1 < fails(dist.DistStoreError, store.wait, ["never"], timedelta(seconds=0.2)) < 10
    # The connection goes on after a wait that was cancelled, and nobody waits there any more.
    store.set("never", "now")
    assert store.get("never") == b"now"
    short = client(timeout=1)
    fails(dist.DistStoreError, short.get, "nobody sets this")
    short.set("b", "w")
    assert short.get("b") == b"w"
    woken = []
    waiter = threading.Thread(target=lambda: woken.append(client().wait(["w1", "w2"])))
    waiter.start()
    store.set("w1", "")
    store.add("w2", 1)
    waiter.join()
    assert woken == [None]


def barriers(store):
    if RANK == 0:
        fails(dist.DistStoreError, store.barrier, "alone", 2, timedelta(seconds=0.2))
    store.barrier("both", 2, timedelta(seconds=60))
    store.barrier("one", 1, timedelta(seconds=60))


def limits(store):
    # Beyond PyTorch's own limits the connection ends; the store goes on.
    fails(dist.DistError, long_key)
    store.set("large", b"x" * (8 << 20))
    assert len(store.get("large")) == 8 << 20


def long_key():
    other = client()
    other.set("k" * 9000, "v")
    other.get("a")


def garbage():
    for first in b"GET / HTTP/1.1\r\n\r\n", b"\x01" + b"\xff" * 8, b"\x00" * 5:
        stranger = socket.create_connection((ADDRESS, PORT), 10)
        stranger.sendall(first)
        try:
            assert stranger.recv(100) == b""
        except ConnectionError:
            pass


def main():
    assert os.environ["CADRE_TORCH_STORE"] == f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    store = client()
    if RANK == 0:
        assert store.num_keys() == 0, store.list_keys()
        for part in plain_operations, queues, waits, limits:
            part(store)
        garbage()
        store.set("first is done", "")
    store.wait(["first is done"])
    barriers(store)
    prefixed = dist.PrefixStore("mine", store.clone())
    prefixed.set(f"from {RANK}", str(RANK))
    assert prefixed.get(f"from {1 - RANK}") == str(1 - RANK).encode()
    # With a number of workers, clients wait for each other as in init_process_group.
    dist.TCPStore(ADDRESS, PORT, world_size=2, is_master=False, timeout=timedelta(seconds=60))
    store.barrier("end", 2, timedelta(seconds=60))
    print(f"rank {RANK}: every operation is as it should be", flush=True)


if __name__ == "__main__":
    sys.exit(main())
