"""Define the common base of Lading's exceptions, and end a command with an error message.

Exceptions mean broken input, environment or code; an expected refusal is a value. The subclass tells the source of the cause.
"""

import sys
import traceback
from typing import NoReturn

from lading.log import printable


class LadingError(Exception):
    """Represent an error with the text `cannot <verb> <object>: <cause>`, and a hint if a person can act."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class ConfigError(LadingError):
    """Report that a file, flag or environment variable that a person wrote is wrong."""


class HostError(LadingError):
    """Report a problem of the machine: a socket in use, a folder that cannot be written, a driver that does not answer."""


class RuntimeUnavailableError(LadingError):
    """Report that the container runtime does not answer, or that its answer does not follow CRI."""


class StateError(LadingError):
    """Report that the node's state is damaged, or was written by a newer version."""


def place_of(error: BaseException) -> str:
    """Return type, file and line of a raised error, but not its text, which may quote a pod's values."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} at {frame.filename.rpartition('/')[2]}:{frame.lineno}"


def die(error: LadingError | str, *, hint: str = "") -> NoReturn:
    """End a command with a message on stderr: exit status 2 for unusable arguments or configuration, 1 for other failures."""
    message = error.message if isinstance(error, LadingError) else error
    hint = hint or (error.hint if isinstance(error, LadingError) else "")
    print(f"error: {printable(message)}", file=sys.stderr)  # the text may quote an annotation or a file of a user
    if hint:
        print(f"hint:  {printable(hint)}", file=sys.stderr)
    raise SystemExit(2 if isinstance(error, ConfigError) else 1)
