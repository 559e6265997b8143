#!/usr/bin/env python3
"""In the manner of SINGA's train_multiprocess.py: processes that share the identifier of their communicator, without
PyTorch.

usage: singa_multiprocess.py
"""

import multiprocessing

WORLD_SIZE = 2


def train(rank, world_size, communicator, gradients, barrier):
    for _ in range(3):
        gradients[rank] = rank + 1.0
        barrier.wait()
        assert sum(gradients) == world_size * (world_size + 1) / 2
        barrier.wait()
    assert bytes(communicator) == b"shared id"
    print(f"trained: rank {rank} of {world_size}", flush=True)


if __name__ == "__main__":
    communicator = multiprocessing.Array("B", b"shared id")
    gradients = multiprocessing.Array("d", WORLD_SIZE)
    barrier = multiprocessing.Barrier(WORLD_SIZE)
    processes = [
        multiprocessing.Process(target=train, args=(rank, WORLD_SIZE, communicator, gradients, barrier))
        for rank in range(WORLD_SIZE)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    raise SystemExit(max(process.exitcode for process in processes))
