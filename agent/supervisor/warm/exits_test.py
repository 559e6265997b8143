"""How long an interpreter waits for other threads when it ends, without PyTorch."""
import hashlib
import os
import sys
import threading
import time
import types
import unittest
import unittest.mock

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import exits  # noqa: E402


def seconds_of(wait):
    begin = time.monotonic()
    wait()
    return time.monotonic() - begin


class ExitsTest(unittest.TestCase):
    def work(self):
        """In C, without the interpreter's lock."""
        while not self.stop:
            hashlib.sha256(self.block).digest()
        self.done.append(time.monotonic())

    def begin(self):
        self.stop, self.done, self.block = False, [], b'x' * (1 << 20)
        thread = threading.Thread(target=self.work)
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(setattr, self, 'stop', True)

    def test_a_thread_that_works_comes_first(self):
        exits._AT_MOST = 60
        self.begin()
        threading.Timer(0.3, setattr, (self, 'stop', True)).start()
        exits._let_threads_finish()
        self.assertEqual(len(self.done), 1)

    def test_one_that_works_for_ever_is_not_awaited(self):
        exits._AT_MOST = 0.2
        self.begin()
        self.assertGreaterEqual(seconds_of(exits._let_threads_finish), 0.2)
        self.assertEqual(self.done, [])

    def test_only_a_program_with_a_group_waits(self):
        module = types.SimpleNamespace(init_process_group=lambda backend: backend)
        exits.watch(module)
        with unittest.mock.patch('atexit.register') as register:
            self.assertEqual([module.init_process_group('gloo') for _ in range(2)], ['gloo', 'gloo'])
        register.assert_called_once_with(exits._let_threads_finish)


if __name__ == '__main__':
    unittest.main()
