"""The module without Cadre, with the standard library only."""
import os
import threading
import unittest

for _name in [name for name in os.environ if name.startswith("CADRE_") or name == "RANK"]:
    del os.environ[_name]

import cadre
from cadre import _errors, _progress, _worker


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


if __name__ == "__main__":
    unittest.main()
