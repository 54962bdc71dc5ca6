"""Test case 7: malicious JSON is refused within bounded time and memory.

Naive versions that fail: plain `json.loads` (recursion, the last of two equal keys, NaN, infinity, quadratic digits, surrogates
that a gRPC message cannot contain); a YAML reader that expands aliases in messages.
"""

import subprocess
import sys
import time
from pathlib import Path
from uuid import uuid4

import pytest

from lading.reasons import Reason
from tests.hostile.front import Front, assignment, devices
from tests.hostile.measure import MIB, memory_growth

LEVELS = 100_000
REFUSED_WITHIN_S = 1.0  # a hook's deadline is two; most take a few milliseconds
GROWTH = 48 * MIB


def bombs(uid: str, gpu: str) -> dict[str, str]:
    """Check assignments that would be valid, or nearly valid, without their malicious addition."""
    good = assignment(uid, gpu)
    extended = good[:-1] + ',"x":%s}'
    return {
        "levels of arrays": "[" * LEVELS,
        "levels that are closed": "[" * LEVELS + "]" * LEVELS,
        "levels of objects": '{"a":' * 40_000,
        "levels in what is ignored": extended % ("[" * LEVELS + "]" * LEVELS),
        "a key twice": good[:-1] + ',"gen":2}',
        "a container twice": good.replace('"containers":{', '"containers":{"main":{"gpus":[]},'),
        "the same key, escaped": good[:-1] + ',"\\u0067en":2}',
        "many keys twice": extended % ("{" + ",".join(['"k":1'] * 30_000) + "}"),
        "NaN": extended % "NaN",
        "-Infinity": extended % "-Infinity",
        "1e309": extended % "1e309",
        "-1e309 for gen": good.replace('"gen":1', '"gen":-1e309'),
        "1.0 for gen": good.replace('"gen":1', '"gen":1.0'),
        "true for gen": good.replace('"gen":1', '"gen":true'),
        "many digits": good.replace('"gen":1', '"gen":' + "1" * 250_000),
        "many digits of a fraction": good.replace('"gen":1', '"gen":0.' + "1" * 250_000),
        "a million digits": good.replace('"gen":1', '"gen":' + "1" * 1_000_000),
        "a lone surrogate": extended % '"\\ud800"',
        "a lone surrogate in a key": good[:-1] + ',"\\udfff":1}',
        "a lone surrogate as a container": good.replace('"main"', '"\\ud800"'),
        "a string without an end": good[:-1] + ',"' + "\\" * 200_000,
        "backslashes": extended % ('"' + "\\\\" * 100_000),
        "quotes": '"' * 262_000,
        "escaped quotes": '"' + '\\"' * 130_000,
        "a wide array": "[1" + ",1" * 130_000 + "]",
        "many empty arrays": "[" + ",".join("[]" for _ in range(80_000)) + "]",
        "NUL": extended % "\0",
        "a byte order mark": "\ufeff" + good,
        "behind the end": good + good,
        "nothing": "",
        "200,000 blanks": " " * 200_000,
        "many containers": extended.replace('"containers":{', '"containers":{' + "".join(f'"{n}":0,' for n in range(25_000)))
        % "0",
    }


@pytest.mark.parametrize("name", bombs("", ""))
def test_an_assignment(by_central: Front, name: str) -> None:
    uid = str(uuid4())
    began = time.monotonic()
    with memory_growth(by_central.lading.hooks.pid) as growth:
        refused = by_central.refused({"lading.dev/assignment": bombs(uid, by_central.gpu(0))[name]}, uid=uid)
    assert refused.reason is Reason.ANNOTATION_MALFORMED
    assert len(refused.message) < 500
    assert time.monotonic() - began < REFUSED_WITHIN_S
    assert growth.bytes < GROWTH


def test_what_is_no_bomb_is_served(by_central: Front) -> None:
    uid = str(uuid4())
    harmless = assignment(uid, by_central.gpu(0))[:-1] + ',"x":[1e308,-0.0,"\\ud83d\\ude00",{"gen":9}]}'
    with by_central.created({"lading.dev/assignment": harmless}, uid=uid) as request:
        assert by_central.card(0) in devices(request)


@pytest.mark.parametrize(
    "annotations",
    [
        pytest.param({f"lading.dev/gpus.c{n}": "0" for n in range(9_000)} | {"lading.dev/gpus": "x"}, id="many keys"),
        pytest.param({"lading.dev/gpus": ",".join(["0"] * 100_000)}, id="many commas"),
        pytest.param({"lading.dev/gpus": "0:" + "memory=1Gi," * 20_000}, id="many options"),
        pytest.param({"lading.dev/vfs": "9" * 200_000}, id="many digits"),
        pytest.param({"lading.dev/gpus." + "a" * 100_000: "0"}, id="a long key"),
        pytest.param({"lading.dev/" + "gpus-" * 20_000: "0"}, id="a long key that is nearly one"),
    ],
)
def test_by_hand(by_hand: Front, annotations: dict[str, str]) -> None:
    began = time.monotonic()
    with memory_growth(by_hand.lading.hooks.pid) as growth:
        refused = by_hand.refused(annotations)
    assert refused.reason is Reason.ANNOTATION_MALFORMED
    assert len(refused.message) < 500
    assert time.monotonic() - began < REFUSED_WITHIN_S
    assert growth.bytes < GROWTH


# The manifest that a person passes to `lading-hooks render` may be written by an attacker.

LAUGHS = "x: &l0 [lol]\n" + "".join(f"x{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 10)}]\n" for n in range(1, 10))
MANIFESTS = {
    "an annotation": LAUGHS + "kind: Pod\nmetadata: {annotations: {a: *l9}}\nspec: {containers: []}\n",
    "the kind": LAUGHS + "kind: *l9\n",
    "a name": LAUGHS + "kind: Pod\nmetadata: {name: *l9}\nspec: {containers: [{name: c}]}\n",
    "a container": LAUGHS + "kind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: *l9}]}\n",
    "levels": "kind: Pod\nspec: " + "[" * LEVELS,
    "an integer": "kind: Pod\nmetadata: {name: p, uid: " + "1" * LEVELS + "}\nspec: {containers: []}\n",
    "an integer for an annotation": "kind: Pod\nmetadata: {annotations: {a: 0x" + "f" * LEVELS + "}}\nspec: {containers: []}\n",
    "itself": "kind: Pod\nmetadata: &m {annotations: {a: *m}}\nspec: {containers: []}\n",
    "a lone surrogate": 'kind: Pod\nmetadata: {name: p, annotations: {"lading.dev/gpus": "\\ud800"}}\n'
    "spec: {containers: [{name: c}]}\n",
}


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_manifest(tmp_path: Path, name: str) -> None:
    manifest = tmp_path / "pod.yaml"
    manifest.write_text(MANIFESTS[name])
    program = Path(sys.executable).with_name("lading-hooks")
    limit = 1024 * MIB
    done = subprocess.run(
        ["prlimit", f"--as={limit}", "--cpu=20", str(program), "render", "-f", str(manifest), "--assignments", "manual"],
        capture_output=True,
        text=True,
        timeout=200,  # seconds on a busy machine; the program may use 20 s of a CPU
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr
    assert len(done.stderr) < 4096
