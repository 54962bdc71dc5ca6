"""Make the files of a release in dist/lading-VERSION: `python deploy/release.py`.

It takes a checkout. It writes the wheel, the images, the chart, the manifests (one file to apply, and the folder to change),
the bill of materials, and SHA256SUMS of all. It refuses a version that CHANGELOG.md or the manifests do not have. The same
commit gives the same bytes.
"""

import argparse
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Final

import yaml

from kubectl_lading.install.manifests import pod_spec, render
from lading import __version__

ROOT: Final = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from deploy import sbom, wheel  # noqa: E402 -- of the checkout
from deploy.chart.build import build as build_chart  # noqa: E402

BESIDE: Final = ("CHANGELOG.md", "LICENSE", "SECURITY.md", "THIRD-PARTY-NOTICES.md")
NOT_MANIFESTS: Final = ("image", "chart", "wheel.py", "release.py", "sbom.py", "__pycache__")


def make(out: Path, *, images: Path | None = None) -> Path:
    """Return the folder. `images`: the tar, if it was built already."""
    if problems := find_problems(ROOT):
        raise SystemExit("".join(f"error: cannot release: {problem}\n" for problem in problems).rstrip())
    date = wheel.source_date(ROOT)
    os.environ["SOURCE_DATE_EPOCH"] = str(date)
    folder = out / f"lading-{__version__}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    made = wheel.build(ROOT, folder)
    if images is None:
        argv = [sys.executable, str(ROOT / "deploy/image/build.py"), "--wheel", str(made), "--out", str(folder)]
        done = subprocess.run(argv, check=False, stdout=subprocess.PIPE, text=True)  # noqa: S603 -- of this checkout
        if done.returncode:
            raise SystemExit(done.returncode)
        images = Path(done.stdout.strip())
    build_chart(folder, date=date)
    (folder / f"lading-{__version__}.yaml").write_text(manifests())
    pack_deploy(folder / f"lading-deploy-{__version__}.tar", date)
    bill = sbom.render(__version__, (ROOT / "requirements.txt").read_text(), sbom.read_debian(images), date=date)
    (folder / f"lading-{__version__}.cdx.json").write_text(bill)
    for name in BESIDE:
        shutil.copyfile(ROOT / name, folder / name)
    write_sums(folder)
    return folder


def find_problems(root: Path) -> list[str]:
    """Return what does not go with the version."""
    problems = []
    if f"\n## {__version__}\n" not in (root / "CHANGELOG.md").read_text():
        problems.append(f"CHANGELOG.md has no section {__version__}")
    for one in render(root / "deploy"):
        spec = pod_spec(one)
        for image in {container["image"] for container in (*spec.get("initContainers", ()), *spec.get("containers", ()))}:
            name, _, tag = image.rpartition(":")
            if name.rpartition("/")[2].startswith("lading-") and tag != __version__:
                problems.append(
                    f"{one['kind']} {one['metadata']['name']} has the image {image}: newTag in its kustomization.yaml"
                )
    return problems


def manifests() -> str:
    """Return all objects as one file, for kubectl apply --server-side -f."""
    return "".join(f"---\n{yaml.safe_dump(one, sort_keys=False, width=128)}" for one in render(ROOT / "deploy"))


def pack_deploy(path: Path, date: int) -> None:
    with tarfile.open(path, "w") as tar:
        for file in sorted((ROOT / "deploy").rglob("*")):
            name = file.relative_to(ROOT).as_posix()
            if file.is_file() and not set(file.relative_to(ROOT / "deploy").parts) & set(NOT_MANIFESTS):
                info = tarfile.TarInfo(f"lading-{__version__}/{name}")
                content = file.read_bytes()
                info.size, info.mtime, info.mode = len(content), date, 0o755 if file.suffix == ".sh" else 0o644
                tar.addfile(info, io.BytesIO(content))


def write_sums(folder: Path) -> None:
    """Write SHA256SUMS, as sha256sum --check reads it."""
    lines = []
    for path in sorted(folder.iterdir()):
        with path.open("rb") as file:
            lines.append(f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {path.name}\n")
    (folder / "SHA256SUMS").write_text("".join(lines))


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the files of a release, and print their folder.")
    parser.add_argument("--out", type=Path, default=Path("dist"), help="where the folder goes (default: dist)")
    parser.add_argument("--images", type=Path, help="the tar of image/build.py, if it was built already; it is not copied")
    args = parser.parse_args()
    print(make(args.out, images=args.images))


if __name__ == "__main__":
    main()
