"""Programs that are run to their end, or to their deadline."""
from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
import time

# What SIGTERM is given, before SIGKILL.
GRACE_SECONDS = 10


class Skipped(Exception):
    """Why a part could not run here, in one line."""


class Failed(Exception):
    """What went wrong, in one line."""


class Programs:
    """Starts programs, each in a session of its own, and ends what still runs. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen] = set()
        self._ended = False

    def run(self, argv: list[str], log: str, seconds: float, env: dict[str, str] | None = None, cwd: str | None = None) -> int:
        """The exit status. Output goes to the file `log`. Failed: it does not start, or ran out of time."""
        with open(log, "wb") as output:
            with self._lock:
                if self._ended:
                    raise Failed("interrupted")
                try:
                    process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
                                               env={**os.environ, **(env or {})}, cwd=cwd)
                except OSError as error:
                    raise Failed("%s does not start: %s" % (argv[0], error.strerror)) from error
                self._running.add(process)
            try:
                return process.wait(timeout=max(seconds, 0))
            except subprocess.TimeoutExpired:
                raise Failed("not done after %.0f s: see %s" % (seconds, log)) from None
            finally:
                end(process)
                with self._lock:
                    self._running.discard(process)

    def end_all(self) -> None:
        with self._lock:
            self._ended = True
            running = list(self._running)
        for process in running:
            end(process)


def end(process: subprocess.Popen) -> None:
    """Nothing is left of its session that did not leave it."""
    for number, seconds in ((signal.SIGTERM, GRACE_SECONDS), (signal.SIGKILL, GRACE_SECONDS)):
        try:
            os.killpg(process.pid, number if process.poll() is None else signal.SIGKILL)
        except ProcessLookupError:
            return
        try:
            process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            continue


def lines_of(log: str) -> list[str]:
    """Of the log, without what is for the eye only."""
    try:
        with open(log, encoding="utf-8", errors="replace") as file:
            return [re.sub(r"\x1b\[[0-9;]*[a-zA-Z]", "", line).strip() for line in file if line.strip()]
    except OSError:
        return []


def explanation(log: str) -> str:
    """The line of the log that most likely says what went wrong."""
    lines = lines_of(log)
    for pattern in (r"Root cause", r"undefined reference|cannot find", r"error:|Error:|ERROR", r"Failure"):
        for line in lines:
            if re.search(pattern, line):
                return line[:300]
    return lines[-1][:300] if lines else "it said nothing"


def succeed(status: int, what: str, log: str) -> None:
    if status != 0:
        raise Failed("%s ended with %d: %s" % (what, status, explanation(log)))


class Clock:
    """How much is left of the time that the whole check may take."""

    def __init__(self, minutes: float) -> None:
        self.minutes = minutes
        self._begin = time.monotonic()

    def taken(self) -> float:
        return time.monotonic() - self._begin

    def left(self) -> float:
        return self.minutes * 60 - self.taken()
