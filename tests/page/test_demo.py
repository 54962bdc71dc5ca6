"""Test `python -m simnode.page`, which serves the page of a cluster in which pods come and go."""

import re
import sys
import urllib.request
from pathlib import Path
from typing import Any

import msgspec

from simnode.child import Child


def test_the_demo(tmp_path: Path) -> None:
    log = tmp_path / "log"
    argv = ["-m", "simnode.page", "--nodes", "3", "--port", "0", "--every", "0.05"]
    demo = Child([sys.executable, *argv], log=log)
    demo.start()
    try:
        demo.wait_until(lambda: "http://" in log.read_text(), "its address")
        (url,) = re.findall(r"http://\S+", log.read_text())
        began = read(f"{url}v1/cluster")
        assert len(began["nodes"]) == 3
        assert "too-large" in [pod["pod"] for pod in began["pending"]]
        later = read(f"{url}v1/cluster?after={began['revision']}")
        assert later["nodes"]
    finally:
        demo.stop()


def read(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(url, timeout=30) as answer:  # noqa: S310 - http, of this machine
        decoded: dict[str, Any] = msgspec.json.decode(answer.read())
        return decoded
