"""Test how a command ends after any failure: with one line and an exit status."""

import errno

import msgspec
import pytest

from kubectl_lading.run import run
from lading.errors import ConfigError, LadingError


async def _fail(error: Exception) -> None:
    raise error


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (LadingError("cannot do it"), 1),
        (ConfigError("cannot use it"), 2),
        (msgspec.DecodeError("JSON is malformed"), 1),
        (OSError(errno.ENOSPC, "No space left on device"), 1),
    ],
)
def test_an_error_is_one_line(capsys: pytest.CaptureFixture[str], error: Exception, status: int) -> None:
    with pytest.raises(SystemExit) as caught:
        run(_fail(error))
    assert caught.value.code == status
    assert capsys.readouterr().err.startswith("error: cannot ")


def test_a_closed_pipe_is_no_error_message() -> None:
    with pytest.raises(BrokenPipeError):
        run(_fail(BrokenPipeError()))
