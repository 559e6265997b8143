"""The module without Cadre, with the standard library only."""
import ctypes
import os
import pickle
import threading
import types
import unittest

for _name in [name for name in os.environ if name.startswith("CADRE_") or name == "RANK"]:
    del os.environ[_name]

import cadre
from cadre import _errors, _memory, _progress, _worker


class WithoutCadre(unittest.TestCase):
    def test_is_rank_0_of_1(self):
        w = cadre.worker()
        self.assertEqual((w.rank, w.world_size, w.local_rank, w.generation, w.restart_count), (0, 1, 0, 0, 0))
        self.assertIs(cadre.worker(), w)
        w.barrier()
        self.assertFalse(cadre.checkpoint.wanted())

    def test_store(self):
        store = _worker._LocalStore()
        with self.assertRaises(_errors.NotFoundError):
            store.get("a", timeout=0)
        threading.Thread(target=store.set, args=("a", b"1\0x")).start()
        self.assertEqual(store.get("a"), b"1\0x")
        self.assertEqual(store.add("n", 2) + store.add("n", 3), 7)
        with self.assertRaises(_errors.FailedPreconditionError):
            store.add("a", 1)
        store.compare_and_set("c", b"", b"x")
        with self.assertRaises(_errors.FailedPreconditionError):
            store.compare_and_set("c", b"y", b"z")
        store.delete("a")
        with self.assertRaises(TimeoutError):
            store.get("a", timeout=0.001)
        for bad in ("", "k" * 257, "a\0b"):
            with self.assertRaises(ValueError):
                store.set(bad, b"")
        with self.assertRaises(ValueError):
            store.set("big", bytes(65537))

    def test_progress_does_nothing(self):
        cadre.progress(step=1, loss=0.5)
        self.assertEqual(list(cadre.steps("ab")), ["a", "b"])
        self.assertEqual(len(cadre.steps("ab")), 2)
        self.assertEqual(list(cadre.steps(c for c in "ab")), ["a", "b"])  # which has no length

    def test_error_of_another_thread_is_raised_here(self):
        with self.assertRaises(ZeroDivisionError):
            _worker._interruptibly(lambda: 1 // 0)


class Loss:
    """As a tensor that requires a gradient: a number once it is detached."""

    def detach(self):
        return 0.25


class Lines(unittest.TestCase):
    def setUp(self):
        self.read, self.write = os.pipe()
        os.environ["CADRE_PROGRESS_FD"] = str(self.write)
        _progress._last = _progress._fd = None
        _progress._told = False

    def tearDown(self):
        del os.environ["CADRE_PROGRESS_FD"]
        _progress._fd = None
        os.close(self.read)
        os.close(self.write)

    def test_line_and_a_forked_child_writes_none(self):
        pid = os.fork()
        if pid == 0:
            cadre.progress(step=9)
            os._exit(0)
        os.waitpid(pid, 0)
        cadre.progress(step=3, loss=Loss())
        cadre.progress(step=4)  # too soon
        self.assertEqual(os.read(self.read, 100), b"step=3 loss=0.25\n")

    def test_total_and_figures_of_its_own(self):
        cadre.progress(step=3, total=10, lr=0.001, accuracy=Loss())
        self.assertEqual(os.read(self.read, 100), b"step=3 total=10 lr=0.001 accuracy=0.25\n")
        _progress._last = None
        for _ in cadre.steps("abc", start=7):
            pass
        self.assertEqual(os.read(self.read, 100), b"step=7 total=10\n")

    def test_a_checkpoint_tells_its_step_where_the_program_does_not(self):
        _progress.saved(7)
        self.assertEqual(os.read(self.read, 100), b"step=7\n")
        _progress._last = None
        cadre.progress(step=1000)
        _progress._last = None
        _progress.saved(8)
        self.assertEqual(os.read(self.read, 100), b"step=1000\n")


class Library:
    """Of one rank: states in memory by how they were saved, as cadre_memory_* give them."""

    def __init__(self, saved):
        head = pickle.dumps({"a": 1}, protocol=4)
        self.bytes = ctypes.create_string_buffer(len(head).to_bytes(8, "little") + head)
        self.saved, self.flags = saved, None  # step by CADRE_MEMORY_REPLICATED or 0

    def cadre_memory_open(self, worker, flags, timeout_ms, memory):
        self.flags = flags

    def cadre_memory_free(self, memory):
        self.flags = None

    def cadre_memory_saved_as(self, memory, flags):
        if not self.saved:
            raise _errors.NotFoundError("none")
        flags._obj.value = max(self.saved, key=self.saved.get)

    def cadre_memory_latest(self, memory, step, data, size):
        kind = self.flags & 1
        if kind not in self.saved:
            if self.saved:
                raise _errors.FailedPreconditionError("the state of step %d was saved as" % list(self.saved.values())[0])
            raise _errors.NotFoundError("none")
        step._obj.value, data._obj.value, size._obj.value = self.saved[kind], ctypes.addressof(self.bytes), len(self.bytes) - 1

    def cadre_memory_write(self, memory, parts, sizes, count):
        pass

    def cadre_memory_commit(self, memory, step):
        self.saved = {self.flags & 1: step}

    def cadre_memory_wait_for_partner(self, memory):
        pass


class HowAStateWasSaved(unittest.TestCase):
    def setUp(self):
        os.environ["CADRE_CHECKPOINT_MEMORY"] = "/nowhere"
        self.worker = types.SimpleNamespace(_lib=None, _handle=None, _owner=os.getpid(), world_size=2, local_rank=0)
        self.before = _worker.worker
        _worker.worker = lambda: self.worker

    def tearDown(self):
        del os.environ["CADRE_CHECKPOINT_MEMORY"]
        _worker.worker, _memory._memory = self.before, None

    def starts_with(self, saved):
        _memory._memory, self.worker._lib = None, Library(saved)

    def test_the_state_says_it(self):
        for kind in 0, 1:
            self.starts_with({kind: 41})
            self.assertEqual(cadre.checkpoint.latest(), ({"a": 1}, 41))
            cadre.checkpoint.save({"a": 2}, 42, replicated=bool(kind))
            cadre.checkpoint.wait()
            self.assertEqual(self.worker._lib.saved, {kind: 42})
            self.assertEqual(cadre.checkpoint.latest(replicated=bool(kind))[1], 42)

    def test_without_one_the_first_save_says_it(self):
        self.starts_with({})
        self.assertEqual(cadre.checkpoint.latest(), (None, -1))
        cadre.checkpoint.save({"a": 2}, 1, replicated=True, partner=False)
        cadre.checkpoint.wait()
        self.assertEqual((self.worker._lib.saved, self.worker._lib.flags), ({1: 1}, 3))
        with self.assertRaisesRegex(_errors.InvalidArgumentError, "step 2: replicated=False here and True before"):
            cadre.checkpoint.save({}, 2)

    def test_a_contradiction_names_the_step(self):
        self.starts_with({1: 41})
        cadre.checkpoint.latest()
        with self.assertRaisesRegex(_errors.InvalidArgumentError, "step 42: replicated=False, but the state of step 41"):
            cadre.checkpoint.save({}, 42)
        self.assertEqual(self.worker._lib.saved, {1: 41})
        self.starts_with({1: 41})
        with self.assertRaisesRegex(_errors.FailedPreconditionError, "step 41"):
            cadre.checkpoint.latest(replicated=False)


if __name__ == "__main__":
    unittest.main()
