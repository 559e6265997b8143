"""tools/scaling with launchers that only say what cifar_resnet50 would."""
import importlib.machinery
import importlib.util
import json
import os
import stat
import subprocess
import sys
import tempfile
import unittest

SCALING = os.path.join(os.path.dirname(os.path.abspath(__file__)), "scaling")
_loader = importlib.machinery.SourceFileLoader("scaling", SCALING)
_spec = importlib.util.spec_from_loader("scaling", _loader)
scaling = importlib.util.module_from_spec(_spec)
sys.modules["scaling"] = scaling
sys.dont_write_bytecode = True
_loader.exec_module(scaling)

# Takes 12 s with one worker, and 6 s plus one with several.
LAUNCHER = """#!/usr/bin/python3
import sys
n = int(sys.argv[sys.argv.index("--nproc-per-node") + 1])
assert "--no-save" in sys.argv and sys.argv[-1] == "--flag", sys.argv
prefix = "[host:0] " if n > 1 else ""
for line in (f"100 training images, 5 test images, {n} ranks with batches of {8 // n}",
             "Epoch [1/2], Step [10/12], Loss: 1.0, Time data load: 1.0ms, Time training: 1.0ms",
             "Epoch [2/2], Step [12/12], Loss: 1.0, Time data load: 1.0ms, Time training: 1.0ms",
             f">>> Training complete in: {12 / n + (n > 1):.3f} s"):
    print(prefix + line)
"""


class Scaling(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def program(self, text):
        path = self.path("launcher")
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(path, stat.S_IRWXU)
        return path

    def run_scaling(self, launcher, *flags):
        return subprocess.run([SCALING, "--cadre", launcher, "--program", "/bin/true", *flags], capture_output=True,
                              text=True, timeout=60, check=False)

    def test_table_plot_and_files(self):
        done = self.run_scaling(self.program(LAUNCHER), "--workers", "1,2,4", "--json", self.path("j"), "--svg",
                                self.path("s"), "--", "--flag")
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = done.stdout.splitlines()
        self.assertEqual(lines[0].split(), ["workers", "time,", "s", "images/s", "speedup", "efficiency"])
        self.assertEqual(lines[1].split(), ["1", "12.0", "16.0", "1.00", "100.0", "%"])
        self.assertEqual(lines[2].split(), ["2", "7.0", "27.4", "1.71", "85.7", "%"])
        self.assertEqual(lines[3].split(), ["4", "4.0", "48.0", "3.00", "75.0", "%"])
        self.assertEqual(lines[8].split(), ["4", "#" * 30, "|", "3.00"])
        with open(self.path("j"), encoding="utf-8") as file:
            rows = json.load(file)
        self.assertEqual([row["workers"] for row in rows], [1, 2, 4])
        self.assertAlmostEqual(rows[2]["efficiency"], 0.75)
        with open(self.path("s"), encoding="utf-8") as file:
            picture = file.read()
        self.assertIn("3.00 (75 %)", picture)
        self.assertEqual(picture.count("<circle"), 3)

    def test_the_ideal_is_marked_within_a_longer_bar(self):
        rows = scaling.make_table([scaling.Run(1, 10, 100), scaling.Run(2, 2.5, 100)])
        self.assertEqual(scaling.format_plot(rows).splitlines()[2].split(), ["2", "#" * 19 + "|" + "#" * 20, "4.00"])

    def test_a_first_run_of_several_counts_as_so_many(self):
        rows = scaling.make_table([scaling.Run(2, 10, 100), scaling.Run(4, 5, 100)])
        self.assertEqual([(row.speedup, row.efficiency) for row in rows], [(2, 1), (4, 1)])

    def test_says_what_is_wrong(self):
        launcher = self.program(LAUNCHER)
        for flags, words in (
                (["--workers", "2,1"], "'2,1': expected increasing numbers"),
                (["--workers", "two"], "'two': expected increasing numbers"),
                (["--", "--checkpoint-dir", "x"], "--checkpoint-dir: a run would go on"),
                (["--program", "/nowhere/cifar_resnet50"], "/nowhere/cifar_resnet50: there is no such program"),
                (["--workers", "1", "--json", "/nowhere/j", "--", "--flag"], "/nowhere/j: cannot be written: No such")):
            done = self.run_scaling(launcher, *flags)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(words, done.stderr)

    def test_a_run_that_fails_or_says_nothing(self):
        for text, timeout, words in (
                ("#!/bin/sh\necho 'no such device'; exit 3\n", "60", "1 workers: ended with status 3"),
                ("#!/bin/sh\necho hello\n", "60", "1 workers: expected the lines of cifar_resnet50"),
                ("#!/bin/sh\nexec tail -f /dev/null\n", "0.1", "1 workers: not done after 0.1 s")):
            done = self.run_scaling(self.program(text), "--workers", "1", "--timeout", timeout)
            self.assertEqual(done.returncode, 1)
            self.assertIn(words, done.stderr)
            self.assertEqual(done.stdout, "")

    def test_what_is_done_is_kept_when_a_later_run_fails(self):
        fails = LAUNCHER.replace("prefix =", "if n == 4: sys.exit('no such device')\nprefix =")
        hangs = LAUNCHER.replace("prefix =", "if n == 4: import signal; signal.pause()\nprefix =")
        for text, timeout, words in ((fails, "60", "4 workers: ended with status 1"), (hangs, "8", "4 workers: not done after 8 s")):
            done = self.run_scaling(self.program(text), "--workers", "1,2,4", "--timeout", timeout, "--json", self.path("j"),
                                    "--svg", self.path("s"), "--", "--flag")
            self.assertEqual(done.returncode, 1)
            self.assertIn(words, done.stderr)
            self.assertEqual([line.split()[0] for line in done.stdout.splitlines()[1:3]], ["1", "2"])
            with open(self.path("j"), encoding="utf-8") as file:
                self.assertEqual([row["workers"] for row in json.load(file)], [1, 2])
            self.assertTrue(os.path.exists(self.path("s")))

    def test_hidden_gpus_do_not_count(self):
        for listed, count in ((None, 8), ("0,1", 2), (" 3 ", 1), ("", 0), ("-1", 0), ("0,-1,1", 1), ("9,0", 0), ("NoDevFiles", 0),
                              ("GPU-1a2b, MIG-3c", 2)):
            self.assertEqual(scaling.visible_gpus(8, listed), count, listed)
        self.assertEqual(scaling.visible_gpus(0, "GPU-1a2b"), 0)


if __name__ == "__main__":
    unittest.main()
