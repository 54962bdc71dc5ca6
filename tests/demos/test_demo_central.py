"""`make demo-central`, as a machine reads it: the real lading-central decides, over HTTP, in a few seconds."""

import json
import subprocess
import sys

from simnode.crowd import FILLING, PROFILES, WAITS, read_samples

DEMO = [sys.executable, "-m", "simnode.demo_central"]


def test_the_demo_ends_well_and_says_its_decisions_as_json() -> None:
    demo = subprocess.run([*DEMO, "-o", "json"], capture_output=True, text=True, check=False)
    assert demo.returncode == 0, demo.stderr
    output = json.loads(demo.stdout)
    assert all(output["checks"].values())
    assert len(output["checks"]) > 5
    bound = {one["pod"]: one["node"] for one in output["decisions"] if "node" in one}
    assert set(bound.values()) == set(PROFILES)
    expected = {pod["metadata"]["name"] for pod in (*read_samples(), *FILLING, WAITS)} | {"urgent"}
    expected |= {"one-more", "right-0", "right-1"}  # the pods of the second of the two jobs
    assert set(bound) == expected - {"gpus-and-rdma", "notebook"}  # the one ended, the other was evicted
    assert output["figures"].keys() == {"decided_s", "bound_after_release_s", "bound_by_preemption_s"}


def test_a_flag_that_is_none() -> None:
    demo = subprocess.run([*DEMO, "-o", "yaml"], capture_output=True, text=True, check=False)
    assert demo.returncode == 2
    assert "yaml" in demo.stderr


def test_people_get_a_last_line_and_nothing_on_stderr() -> None:
    demo = subprocess.run(DEMO, capture_output=True, text=True, check=False)
    assert demo.stdout.splitlines()[-1] == "lading demo-central: ok", demo.stdout + demo.stderr
    assert demo.stderr == ""
