"""Grants as files: which are taken, and what is wrong with the others."""

from pathlib import Path

import msgspec
import pytest

from lading.sharegrant import FILE, MAX_GPUS, SharedGpu, parse_grant, render_grant
from lading.vocabulary import GpuUuid
from shares.grants import MAX_BYTES, list_grants, read_grant
from tests.fakes.share_rig import CARD, share, shared

GOOD = share("train", shared(request=30, limit=60))
REPLACE = msgspec.structs.replace


def read(folder: Path, text: bytes) -> object:
    (folder / FILE).write_bytes(text)
    return read_grant(folder / FILE)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    assert read(tmp_path, render_grant(GOOD)) == GOOD


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"", "truncated"),
        (b"[]", "object"),
        (render_grant(GOOD).replace(b'"v":1', b'"v":2'), "$.v"),
        (render_grant(GOOD).replace(b"GPU-", b"gpu-"), "uuid"),
        (render_grant(REPLACE(GOOD, gpus=())), "gpus"),
        (render_grant(REPLACE(GOOD, gpus=(shared(),) * (MAX_GPUS + 1))), "gpus"),
        (render_grant(REPLACE(GOOD, gpus=(shared(), shared()))), "twice"),
        (render_grant(REPLACE(GOOD, gpus=(shared(request=60, limit=30),))), "limit"),
        (render_grant(REPLACE(GOOD, gpus=(shared(mib=90_000),))), "memory_mib"),
        (render_grant(REPLACE(GOOD, gpus=(shared(mib=0),))), "memory_mib"),
        (render_grant(REPLACE(GOOD, gpus=(shared(request=101, limit=101),))), "percent"),
        (render_grant(GOOD) + b" " * MAX_BYTES, "bytes"),
    ],
)
def test_a_grant_that_cannot_be_used_is_described(tmp_path: Path, text: bytes, words: str) -> None:
    problem = read(tmp_path, text)
    assert isinstance(problem, str)
    assert str(tmp_path / FILE) in problem
    assert words in problem


def test_a_uuid_is_sixteen_bytes() -> None:
    for uuid in (CARD + "0", "GPU-", "GPU-" + "0" * 32, CARD[:-1] + "A"):
        wrong = SharedGpu(uuid=GpuUuid(uuid), memory_mib=1, total_mib=1, request_percent=1, limit_percent=1)
        with pytest.raises(msgspec.ValidationError):
            parse_grant(render_grant(REPLACE(GOOD, gpus=(wrong,))))


def test_a_file_that_cannot_be_read_is_described(tmp_path: Path) -> None:
    assert "No such file" in str(read_grant(tmp_path / FILE))


def test_only_folders_with_a_grant_are_listed(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / FILE).write_bytes(b"1")
    first = list_grants(tmp_path)
    assert list(first) == ["a"]
    (tmp_path / "a" / "new").write_bytes(b"12")
    (tmp_path / "a" / "new").replace(tmp_path / "a" / FILE)
    assert list_grants(tmp_path)["a"] != first["a"]
