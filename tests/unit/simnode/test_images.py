import hashlib
import io
import json
import tarfile

import pytest

from lading.errors import HostError
from simnode.images import Entry, compile_c, render_image

FILES = {
    "bin/sh": Entry(link="busybox"),
    "bin/busybox": Entry(content=b"\x7fELF", mode=0o755),
    "etc/passwd": Entry(content=b"root"),
}


def members(tar: bytes) -> dict[str, tuple[tarfile.TarInfo, bytes]]:
    with tarfile.open(fileobj=io.BytesIO(tar)) as opened:
        out = {}
        for info in opened.getmembers():
            file = opened.extractfile(info) if info.isreg() else None
            out[info.name] = (info, file.read() if file else b"")
        return out


def test_the_same_files_give_the_same_bytes_in_any_order() -> None:
    backwards = dict(reversed(FILES.items()))
    assert render_image("a/b:1", FILES, {}) == render_image("a/b:1", backwards, {})


def test_every_blob_is_what_its_digest_says() -> None:
    blobs = {n: c for n, (_, c) in members(render_image("a/b:1", FILES, {})).items() if n.startswith("blobs/")}
    assert len(blobs) == 3
    for name, content in blobs.items():
        assert name == f"blobs/sha256/{hashlib.sha256(content).hexdigest()}"


def test_the_index_leads_to_the_layer_and_the_configuration() -> None:
    image = members(render_image("a/b:1", FILES, {"Cmd": ["sh"]}))

    def blob(reference: dict[str, str]) -> bytes:
        return image[f"blobs/sha256/{reference['digest'].removeprefix('sha256:')}"][1]

    (entry,) = json.loads(image["index.json"][1])["manifests"]
    assert entry["annotations"]["io.containerd.image.name"] == "a/b:1"
    manifest = json.loads(blob(entry))
    config = json.loads(blob(manifest["config"]))
    assert config["config"]["Cmd"] == ["sh"]
    layer = blob(manifest["layers"][0])
    assert config["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(layer).hexdigest()}"]
    files = members(layer)
    assert files["bin/sh"][0].linkname == "busybox"
    assert files["bin/busybox"][0].mode == 0o755
    assert files["tmp"][0].mode == 0o1777
    assert {(info.uid, info.mtime) for info, _ in files.values()} == {(0, 0)}


def test_a_program_that_does_not_compile_is_an_error() -> None:
    with pytest.raises(HostError, match="nonsense"):
        compile_c("nonsense instead of C")
