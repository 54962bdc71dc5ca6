"""Generate the Python code of the protos, or with `--check` report generated code that is out of date."""

import sys
import tempfile
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
PROTOS = ("protos/hook/v1/hook.proto", "protos/cri/runtime/v1/api.proto", "protos/nri/v1alpha1/nri.proto")


def generate(out: Path) -> None:
    status = protoc.main(["protoc", f"-I{ROOT}", f"--python_out={out}", f"--pyi_out={out}", *PROTOS])
    if status:
        raise SystemExit(status)


def stale() -> list[str]:
    """Return the generated files that differ from what the protos generate now."""
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder))
        fresh = [p for p in Path(folder).rglob("*") if p.is_file()]
        names = [str(p.relative_to(folder)) for p in fresh]
        return [
            n for n, p in zip(names, fresh, strict=True) if not (ROOT / n).exists() or (ROOT / n).read_bytes() != p.read_bytes()
        ]


if __name__ == "__main__":
    if "--check" in sys.argv[1:]:
        if files := stale():
            sys.exit(f"error: generated code is stale: {', '.join(files)}\nhint:  make proto")
    else:
        generate(ROOT)
