"""A machine without a card: the tests and the bench of a card end with what is missing."""

from collections.abc import Callable, Sequence

import pynvml
import pytest

from bench import gpu as bench_gpu
from tests.gpu import __main__ as tests_gpu


def fail() -> None:
    raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)


@pytest.mark.parametrize("main", [bench_gpu.main, tests_gpu.main])
def test_without_a_driver_it_ends_and_says_what_it_needs(
    main: Callable[[Sequence[str]], None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pynvml, "nvmlInit", fail)
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 1
    error, hint = capsys.readouterr().err.splitlines()
    assert "cannot use a card of this machine" in error
    assert "libnvidia-ml.so.1" in error
    assert hint.startswith("hint:")
