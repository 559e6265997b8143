"""Exceptions by the library's status codes."""
from __future__ import annotations

TYPE_CHECKING = False  # typing takes longer to import than all of this
if TYPE_CHECKING:
    from typing import Dict, Type

class CadreError(Exception):
    """What a call of Cadre failed with; code is one of cadre.h."""

    code = 2


class InvalidArgumentError(CadreError, ValueError):
    code = 3


class DeadlineExceededError(CadreError, TimeoutError):
    code = 4


class NotFoundError(CadreError, LookupError):
    code = 5


class ResourceExhaustedError(CadreError):
    code = 8


class FailedPreconditionError(CadreError):
    code = 9


class AbortedError(CadreError):
    """The generation has moved on: exit, and Cadre starts the next one."""

    code = 10


class UnavailableError(CadreError, ConnectionError):
    code = 14


_BY_CODE: Dict[int, Type[CadreError]] = {kind.code: kind for kind in CadreError.__subclasses__()}


def error_of(code: int, message: str) -> CadreError:
    error = _BY_CODE.get(code, CadreError)(message)
    error.code = code
    return error
