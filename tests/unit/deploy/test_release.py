"""Test a release: what it refuses, its bill of materials, its checksums, and that the notices name all included software."""

import io
import json
import re
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from deploy import sbom
from deploy.release import find_problems, manifests, pack_deploy, write_sums
from lading import __version__
from tests.docs import ROOT

REQUIREMENTS = (ROOT / "requirements.txt").read_text()
PINNED = re.findall(r"^([A-Za-z0-9._-]+)==", REQUIREMENTS, re.MULTILINE)
STATUS = "Package: libc6\nVersion: 2.36-9+deb12u1\nArchitecture: amd64\nDescription: x\n more\n"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    shutil.copy(ROOT / "CHANGELOG.md", tmp_path)
    shutil.copytree(ROOT / "deploy", tmp_path / "deploy")
    return tmp_path


def test_the_present_version_can_be_released(tree: Path) -> None:
    assert find_problems(tree) == []


def test_a_version_without_its_section_or_with_another_image_is_refused(tree: Path) -> None:
    for path, old, new in (
        ("CHANGELOG.md", f"\n## {__version__}\n", "\n## 0.0.9\n"),
        ("deploy/node/kustomization.yaml", f"newTag: {__version__}", "newTag: 0.0.9"),
    ):
        text = (tree / path).read_text()
        assert old in text
        (tree / path).write_text(text.replace(old, new))
    problems = "\n".join(find_problems(tree))
    assert f"CHANGELOG.md has no section {__version__}" in problems
    assert "DaemonSet lading-guard has the image lading-node:0.0.9" in problems


def test_the_bill_names_each_python_package_and_each_of_debian(tmp_path: Path) -> None:
    images = tmp_path / "images.tar"
    with tarfile.open(images, "w") as archive:
        layer = io.BytesIO()
        with tarfile.open(fileobj=layer, mode="w") as files:
            add(files, "var/lib/dpkg/status.d/libc6", STATUS.encode())
            add(files, "etc/passwd", b"")
        add(archive, "blobs/sha256/1", layer.getvalue())
        add(archive, "manifest.json", json.dumps([{"Layers": ["blobs/sha256/1"]}]).encode())
    bill = json.loads(sbom.render("1.2.3", REQUIREMENTS, sbom.read_debian(images), date=0))
    purls = [one["purl"] for one in bill["components"]]
    assert purls[-1] == "pkg:deb/debian/libc6@2.36-9%2Bdeb12u1?arch=amd64"
    assert [purl.split("@")[0] for purl in purls[:-1]] == [f"pkg:pypi/{name}" for name in PINNED]
    assert all(one["hashes"] for one in bill["components"][:-1])
    assert len(set(purls)) == len(purls)
    assert bill["dependencies"][0]["dependsOn"] == purls


def add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    tar.addfile(info, io.BytesIO(content))


def test_checksums_are_as_sha256sum_reads_them(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1")
    (tmp_path / "b").write_text("2")
    write_sums(tmp_path)
    check = ["sha256sum", "--check", "--strict", "SHA256SUMS"]
    assert subprocess.run(check, cwd=tmp_path, capture_output=True, check=False).returncode == 0
    (tmp_path / "b").write_text("3")
    assert subprocess.run(check, cwd=tmp_path, capture_output=True, check=False).returncode == 1


def test_the_manifests_are_one_file_and_the_folder_that_makes_it(tmp_path: Path) -> None:
    assert f"lading-node:{__version__}" in manifests()
    pack_deploy(tmp_path / "deploy.tar", 0)
    with tarfile.open(tmp_path / "deploy.tar") as tar:
        names = {name.partition("/")[2] for name in tar.getnames()}
    assert {"deploy/kustomization.yaml", "deploy/node/node.yaml", "deploy/cert-manager/certificates.yaml"} <= names
    builders = ("deploy/chart/", "deploy/image/", "deploy/wheel.py", "deploy/release.py", "deploy/sbom.py")
    assert not [name for name in names if name.startswith(builders) or "__pycache__" in name]


def test_notices_name_every_package_that_is_brought_along() -> None:
    notices = (ROOT / "THIRD-PARTY-NOTICES.md").read_text()
    named = re.findall(r"^\| ([a-z0-9-]+) \| [^|?]+ \|$", notices, re.MULTILINE)
    assert named == PINNED
    vendored = [path.relative_to(ROOT).as_posix() for path in (ROOT / "protos").rglob("*.proto")]
    ours = {"protos/hook/v1/hook.proto"}
    assert all(path in notices for path in set(vendored) - ours)
