"""Run a command on its own event loop, and print its error in one line with a hint."""

import asyncio
from collections.abc import Coroutine, Sequence
from difflib import get_close_matches
from typing import Any, TypeVar

import msgspec

from lading.amounts import first_few
from lading.errors import LadingError, die

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    try:
        return asyncio.run(work)
    except LadingError as e:
        die(e)
    except msgspec.DecodeError as e:
        die(f"cannot read what the API server answered: {e}", hint="is a proxy in between?")
    except BrokenPipeError:  # the reader of the output closed the pipe: click exits without a message
        raise
    except OSError as e:
        die(f"cannot write the answer: {e.strerror or e}")


def not_found(kind: str, name: str, names: Sequence[str], *, where: str = "") -> LadingError:
    """Return an error for a missing object, with similar existing names as hint. `where`: the place of these, as text."""
    if not names:
        return LadingError(f"cannot find {kind} {name}: there is no {kind}{where}")
    near = get_close_matches(name, names, n=3, cutoff=0.5) or [one for one in names if name and name in one][:3]
    there = first_few(sorted(names), 6, rest=", and {} more")
    hint = f"did you mean {' or '.join(near)}?" if near else f"there {'are' if len(names) > 1 else 'is'} {there}"
    return LadingError(f"cannot find {kind} {name}", hint=hint)
