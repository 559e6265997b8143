"""Progress as lines on the descriptor that the agent handed down."""
from __future__ import annotations

import os
import stat
import time

TYPE_CHECKING = False  # typing takes longer to import than all of this
if TYPE_CHECKING:
    from typing import Dict, Iterable, Iterator, Optional, TypeVar

    T = TypeVar("T")

_MIN_INTERVAL = 0.1  # seconds; the agent needs no more of them
_owner = os.getpid()  # a forked child is not the worker
_last: Optional[float] = None
_fd: Optional[int] = None
_told = False  # the program says how far it is


def _descriptor() -> int:
    """That of the environment if it is a pipe or a socket; another file is some other one of this process."""
    try:
        fd = int(os.environ["CADRE_PROGRESS_FD"])
        mode = os.fstat(fd).st_mode
    except (KeyError, ValueError, OverflowError, OSError):
        return -1
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
        return -1
    os.set_inheritable(fd, False)  # a program that this one starts is not a worker
    os.set_blocking(fd, False)  # training never waits for its reader
    return fd


def progress(
    *,
    step: int,
    loss: Optional[float] = None,
    samples_per_second: Optional[float] = None,
    total: Optional[int] = None,
    **figures: float,
) -> None:
    """Says how far this worker is, of `total` steps, with figures of its own (lr=0.1); any but the steps may be a tensor. Never waits, and no
    reader's trouble is the program's; does nothing without Cadre and in forked children."""
    global _told
    _told = True
    if loss is not None:
        figures["loss"] = loss
    _report(step, samples_per_second, total, figures)


def saved(step: int) -> None:
    """A checkpoint of that step says how far a program is that does not say it otherwise."""
    if not _told:
        _report(step, None, None, {})


def _report(step: int, samples_per_second: Optional[float], total: Optional[int], figures: Dict[str, float]) -> None:
    global _last, _fd
    now = time.monotonic()
    if os.getpid() != _owner or (_last is not None and now - _last < _MIN_INTERVAL):
        return
    if _fd is None:
        _fd = _descriptor()
    if _fd < 0:
        return
    line = "step=%d" % step
    if samples_per_second is not None:
        line += " samples_per_second=%g" % samples_per_second
    if total is not None:
        line += " total=%d" % total
    for name, figure in figures.items():
        # PyTorch warns where a tensor that requires a gradient becomes a number.
        line += " %s=%g" % (name, figure.detach() if hasattr(figure, "detach") else figure)
    try:
        os.write(_fd, (line + "\n").encode())
        _last = now
    except BlockingIOError:
        pass  # a line that does not fit is dropped
    except OSError:
        _fd = -1


class _Steps:
    def __init__(self, loader: Iterable[T], start: int) -> None:
        self._loader, self._start = loader, start

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[T]:
        try:
            total: Optional[int] = self._start + len(self)
        except TypeError:
            total = None  # it does not know
        for step, item in enumerate(self._loader, self._start):
            yield item
            progress(step=step, total=total)


def steps(loader: Iterable[T], start: int = 0) -> Iterable[T]:
    """The loader's items, as many as it has; reports each one's number, from start, and how many there are, once the loop's body has finished
    it."""
    return _Steps(loader, start)
