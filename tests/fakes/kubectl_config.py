"""Compare what kubectl and `lading.kube` read from the same kubeconfigs.

python -m tests.fakes.kubectl_config KUBECTL    records tests/golden/kubeconfig/answers.json anew
"""

import base64
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from lading.errors import ConfigError
from lading.kube.config import KubectlRules, choose_entries
from lading.kube.kubeconfig import Cluster, User

GOLDEN: Final = Path(__file__).parents[1] / "golden" / "kubeconfig" / "answers.json"
Answer = dict[str, Any] | None  # None: an error


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Hold the files of a case by name (`a/config`, `a/ca.crt`), and a person's flags and environment."""

    files: dict[str, str]
    kubeconfig: tuple[str, ...]  # the paths in $KUBECONFIG
    flag: str = ""
    context: str = ""


@contextlib.contextmanager
def written(case: Case) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="kubeconfig-") as name:
        folder = Path(name)
        for file, text in case.files.items():
            (folder / file).parent.mkdir(exist_ok=True)
            (folder / file).write_text(text)
        yield folder


def ask_kubectl(kubectl: str, case: Case) -> Answer:
    with written(case) as folder:
        flags = [f"--kubeconfig={folder / case.flag}"] if case.flag else []
        flags += [f"--context={case.context}"] if case.context else []
        done = subprocess.run(
            [kubectl, "config", "view", "--minify", "--flatten", "--raw", "-o", "json", *flags],
            env={**os.environ, "HOME": str(folder), "KUBECONFIG": os.pathsep.join(str(folder / f) for f in case.kubeconfig)},
            capture_output=True,
            check=False,
        )
        return _simplify(json.loads(done.stdout)) if done.returncode == 0 else None


def _simplify(view: dict[str, Any]) -> Answer:
    cluster, user, context = (next(iter(view[f"{kind}s"] or [{kind: {}}]))[kind] for kind in ("cluster", "user", "context"))
    return {
        "server": cluster.get("server", ""),
        "name": cluster.get("tls-server-name", ""),
        "insecure": cluster.get("insecure-skip-tls-verify", False),
        "proxy": cluster.get("proxy-url", ""),
        "authority": _text(cluster.get("certificate-authority-data", "")),
        "certificate": _text(user.get("client-certificate-data", "")),
        "key": _text(user.get("client-key-data", "")),
        "token": user.get("token", ""),
        "token_file": Path(user.get("tokenFile", "")).name,
        "as": user.get("as", ""),
        "username": user.get("username", ""),
        "exec": Path(user.get("exec", {}).get("command", "")).name,
        "namespace": context.get("namespace", ""),
    }


def encode(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _text(data: str) -> str:
    return base64.b64decode(data).decode()


def ask_lading(case: Case) -> Answer:
    with written(case) as folder:
        environment = {"KUBECONFIG": os.pathsep.join(str(folder / file) for file in case.kubeconfig)}
        rules = KubectlRules(kubeconfig=str(folder / case.flag) if case.flag else "", environment=environment)
        try:
            chosen = choose_entries(rules.find_files(), case.context, explicit=bool(case.flag))
            context = chosen.context
            if not chosen.current or (context.cluster and not chosen.cluster) or (context.user and not chosen.user):
                return None  # kubectl shows no context whose cluster or user is absent
            cluster = msgspec.to_builtins(chosen.cluster or Cluster())
            user = msgspec.to_builtins(chosen.user or User())
            for entry in (cluster, user):  # FlattenContent of clientcmd/api/helpers.go does the same
                for key in [key for key in entry if f"{key}-data" in entry and entry[key]]:
                    if entry[f"{key}-data"]:
                        return None  # `--flatten` refuses a file beside its data; in a request the data counts
                    entry[f"{key}-data"] = encode(Path(entry[key]).read_text())
        except (ConfigError, OSError):
            return None
        user["exec"] = user["exec"] or {}
        view = {"cluster": cluster, "user": user, "context": msgspec.to_builtins(context)}
        return _simplify({f"{kind}s": [{kind: one}] for kind, one in view.items()})


def _entry(kind: str, name: str, **fields: object) -> dict[str, object]:
    return {"name": name, kind: fields}


def _config(current: str = "", **lists: list[dict[str, object]]) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "Config", "current-context": current, **lists})


def _cases() -> Iterator[Case]:
    one = _config(
        clusters=[_entry("cluster", "c", server="https://a", **{"tls-server-name": "x", "certificate-authority": "ca.crt"})],
        users=[_entry("user", "u", token="ta")],  # noqa: S106
        contexts=[_entry("context", "x", cluster="c", user="u")],
    )
    two = _config(
        "x",
        clusters=[
            _entry("cluster", "c", server="https://b", **{"proxy-url": "http://p", "certificate-authority": "ca.crt"}),
            _entry("cluster", "d", server="https://d", **{"certificate-authority-data": encode("inline")}),
        ],
        users=[_entry("user", "u", tokenFile="tok", token="tb", exec={"command": "./x/y", "apiVersion": "v1"})],  # noqa: S106
        contexts=[_entry("context", "x", cluster="d", user="u", namespace="nb"), _entry("context", "y", cluster="c", user="u")],
    )
    files = {"a/config": one, "a/ca.crt": "of a", "b/config": two, "b/ca.crt": "of b"}
    for kubeconfig in [("a/config", "b/config"), ("b/config", "a/config"), ("b/config",), ("a/config",)]:
        for context in ("", "x", "y", "none"):
            yield Case(files=files, kubeconfig=kubeconfig, context=context)
        yield Case(files=files, kubeconfig=kubeconfig, flag="b/config")
    yield Case(files=files, kubeconfig=("a/config",), flag="a/none")
    for text in (
        "",
        "# comment",
        "\n",
        "null",
        "{}",
        "[]",
        "words",
        "current-context: null\nusers: null",
        "users:\n- name: u\n  user: null",
        "kind: Pod\napiVersion: v1",
        "kind: Config\napiVersion: v2",
        "current-context: 7",
        "current-context: true",
        "clusters: {a: b}",
        "clusters:\n- {name: c, cluster: {server: a}}\n- {name: c, cluster: {server: b}}",
        "clusters:\n- {name: d, cluster: {certificate-authority-data: '%'}}",
        "clusters:\n- {name: d, cluster: {certificate-authority: a/ca.crt, certificate-authority-data: aW5saW5l}}",
        "current-context: x\n---\ncurrent-context: none",
        "unknown: key\npreferences: {}",
        "contexts:\n- name: 2020-01-01\n  context: {cluster: c}\ncurrent-context: 2020-01-01",
        "contexts: [",
        "users:\n- name: u\n  user: {tokenFile: own, client-certificate: none.crt}",
    ):
        yield Case(files={**files, "e/config": text}, kubeconfig=("none", "e/config", "b/config"))
        yield Case(files={**files, "e/config": text}, kubeconfig=("b/config", "e/config"))
        yield Case(files={**files, "e/config": text}, kubeconfig=(), flag="e/config")


if __name__ == "__main__":
    version = json.loads(
        subprocess.run([sys.argv[1], "version", "--client", "-o", "json"], capture_output=True, check=True).stdout
    )
    recorded = [{"case": msgspec.to_builtins(case), "answer": ask_kubectl(sys.argv[1], case)} for case in _cases()]
    GOLDEN.write_text(json.dumps({"kubectl": version["clientVersion"]["gitVersion"], "answers": recorded}, indent=1) + "\n")
