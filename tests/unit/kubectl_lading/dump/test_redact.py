"""Test what leaves a cluster in a sysdump: no secret, and what a maintainer needs."""

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubectl_lading.dump.redact import REDACTED, REMOVED, arguments, is_secret_name, keep, scrub
from kubectl_lading.dump.shapes import DEPLOYMENT, NODE, POD, config_map, event
from lading.vocabulary import ASSIGNMENT, ASSIGNMENT_SIGNATURE, MANUAL_GPUS

CANARY = "c4n4ry-hunter2"

HIDING = [
    f"https://admin:{CANARY}@registry.example/v2",
    f"dial postgres://u:{CANARY}@db:5432/x failed",
    *(f"jdbc:mysql://u:{CANARY}@db", f"Authorization: Bearer {CANARY}", f"authorization: basic {CANARY}=="),
    *(f"password={CANARY}", f"DB_PASSWORD: {CANARY}"),
    f'{{"client_secret": "{CANARY}", "a": 1}}',
    *(f'msg="{{\\"apiKey\\":\\"{CANARY}\\"}}"', f"token = '{CANARY}'", f"private_key={CANARY};"),
    *(f"GET /x?access_token={CANARY}&b=1", f"run --password {CANARY} --verbose"),
    f"passphrase: two {CANARY}"[:12] + CANARY,
    f"-----BEGIN PRIVATE KEY-----\n{CANARY}\n-----END PRIVATE KEY-----",
    f"-----BEGIN OPENSSH PRIVATE KEY-----\n{CANARY}",
    f'wandb_api_key = "a b {CANARY}"',
]


@pytest.mark.parametrize("text", HIDING)
def test_secrets_in_text_are_redacted(text: str) -> None:
    message = scrub(text)
    assert CANARY not in message
    assert REDACTED in message
    assert scrub(message) == message


@pytest.mark.parametrize(
    "shaped",
    [
        "eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJrdWJl.c2lnbmF0dXJl",
        "AKIAIOSFODNN7EXAMPLE",
        "ghp_0123456789abcdefghij0123",
        "hf_0123456789abcdefghij01",
        "glpat-0123456789abcdefghij",
    ],
)
def test_a_word_with_the_shape_of_a_token_is_redacted(shaped: str) -> None:
    assert shaped not in scrub(f"using {shaped} for it")


@pytest.mark.parametrize(
    "text",
    [
        "level=info event=bind.confirmed namespace=a pod=train-0 pod_uid=6fa459ea node=n1 gen=7",
        "GPU-00000007-4c61-6469-6e67-00000000d896 is held by team-a/train-0",
        "https://lading-central.lading-system.svc:8080/filter",
        'secret "lading-central-signing" not found',
        'signing_key = "/etc/lading/signing/private.pem"\nkey_id = "central-1"',
        "lading: device-held: GPU 0 (0000:1b:00.0) is held by team-a/train-9",
        "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEA\n-----END PUBLIC KEY-----",
    ],
)
def test_text_without_secrets_is_not_changed(text: str) -> None:
    assert scrub(text) == text


@given(st.text())
def test_scrubbing_again_changes_nothing(text: str) -> None:
    assert scrub(scrub(text)) == scrub(text)


@pytest.mark.parametrize("word", ["a", "a.", "a-", "://", "http://", "token", "password=", "-----BEGIN PRIVATE KEY-----", "x:"])
def test_redacting_a_long_word_takes_little_time(word: str) -> None:
    began = time.process_time()
    scrub(word * (200_000 // len(word)))
    assert time.process_time() - began < 5


def test_a_command_line_keeps_the_names_of_flags() -> None:
    text = ["sh", "-c", CANARY, "--config", "/etc/x.toml", "--token", CANARY, f"--password={CANARY}", "-v=2", CANARY]
    kept = ["-c", "--config", "/etc/x.toml", "--token", f"--password={REMOVED}", "-v=2"]
    assert [one for one in arguments(text) if one != REMOVED] == kept
    assert len(arguments(text)) == len(text)
    assert CANARY not in json.dumps(arguments([f"--config=http://u:{CANARY}@x"]))


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        *(("private.pem", True), ("tls.key", True), ("api-token", True), ("AUTH", True), ("central.toml", False)),
        ("config.yaml", False),
    ],
)
def test_names_of_files_with_secrets_are_recognised(name: str, secret: bool) -> None:
    assert is_secret_name(name) is secret


# ---- objects

SECRET_POD: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {
        "name": "train-0",
        "namespace": "team-a",
        "uid": "u",
        "labels": {"owner": CANARY, "app.kubernetes.io/name": "train"},
        "annotations": {
            "kubectl.kubernetes.io/last-applied-configuration": CANARY,
            "vault.example/password": CANARY,
            "lading.dev/of-tomorrow": CANARY,
            MANUAL_GPUS + ".main": "0,1",
            ASSIGNMENT: '{"v":1,"pod":"u"}',
            ASSIGNMENT_SIGNATURE: "ed25519:central-1:c2lnbmF0dXJl",
        },
        "managedFields": [{"manager": "kubectl", "fieldsV1": {"f:x": CANARY}, "time": "t"}],
        "finalizers": [CANARY],
    },
    "spec": {
        "nodeName": "n1",
        "serviceAccountName": CANARY,
        "imagePullSecrets": [{"name": CANARY}],
        "volumes": [{"name": "v", "nfs": {"server": CANARY, "path": CANARY}}],
        "hostAliases": [{"ip": CANARY}],
        "containers": [
            {
                "name": "main",
                "image": f"https://u:{CANARY}@registry/img",
                "command": ["sh", "-c", CANARY],
                "args": [CANARY],
                "env": [
                    {"name": "PASSWORD", "value": CANARY},
                    {"name": "PLAIN", "valueFrom": {"secretKeyRef": {"name": CANARY, "key": CANARY}}},
                ],
                "envFrom": [{"secretRef": {"name": CANARY}}],
                "lifecycle": {"postStart": {"exec": {"command": [CANARY]}}},
                "livenessProbe": {"httpGet": {"httpHeaders": [{"name": "Authorization", "value": CANARY}]}},
                "volumeMounts": [{"name": "v", "mountPath": f"/mnt/{CANARY}"}],
                "resources": {"limits": {"lading.dev/gpu": "2", "cpu": 4}},
                "securityContext": {"privileged": True, "seLinuxOptions": {"user": CANARY}},
            }
        ],
        "ofTomorrow": CANARY,
    },
    "status": {
        "phase": "Running",
        "message": CANARY,
        "podIP": CANARY,
        "conditions": [
            {"type": "PodScheduled", "status": "False", "message": "0/1 nodes are available: too few free GPUs"},
            {"type": "Ready", "status": "False", "message": CANARY},
        ],
        "containerStatuses": [
            {
                "name": "main",
                "restartCount": 2,
                "state": {"waiting": {"reason": "CreateContainerError", "message": "lading: device-held: GPU 0 is held"}},
                "lastState": {"terminated": {"exitCode": 1, "message": CANARY}},
            },
            {"name": "side", "state": {"waiting": {"reason": "CrashLoopBackOff", "message": CANARY}}},
        ],
    },
}


def test_the_dump_of_a_pod_has_its_devices_and_no_secret() -> None:
    kept = keep(SECRET_POD, POD)
    assert CANARY not in json.dumps(kept)
    annotations = kept["metadata"]["annotations"]
    before = SECRET_POD["metadata"]["annotations"]
    for key in (ASSIGNMENT, ASSIGNMENT_SIGNATURE, MANUAL_GPUS + ".main"):
        assert annotations[key] == before[key]
    (container,) = kept["spec"]["containers"]
    assert [one["name"] for one in container["env"]] == ["PASSWORD", "PLAIN"]
    assert container["resources"]["limits"] == {"lading.dev/gpu": "2", "cpu": "4"}
    status = kept["status"]["containerStatuses"][0]
    assert status["state"]["waiting"]["message"] == "lading: device-held: GPU 0 is held"
    assert status["lastState"]["terminated"] == {"exitCode": 1}
    assert [one.get("message", "")[:3] for one in kept["status"]["conditions"]] == ["0/1", "[re"]
    assert kept["metadata"]["managedFields"] == [{"manager": "kubectl", "time": "t"}]


def test_the_dump_of_a_node_has_its_versions_and_no_secret() -> None:
    node = {
        "metadata": {
            "name": "n1",
            "annotations": {"cloud/credentials": CANARY},
            "labels": {"rack": CANARY, "nvidia.com/gpu": "x"},
        },
        "spec": {"providerID": CANARY, "taints": [{"key": "gpu", "value": CANARY, "effect": "NoSchedule"}]},
        "status": {
            "addresses": [{"address": CANARY}],
            "images": [{"names": [CANARY]}],
            "nodeInfo": {"kubeletVersion": "v1.36.2", "bootID": "b"},
        },
    }
    kept = keep(node, NODE)
    assert CANARY not in json.dumps(kept)
    assert kept["status"]["nodeInfo"] == {"kubeletVersion": "v1.36.2", "bootID": "b"}
    assert kept["metadata"]["labels"]["nvidia.com/gpu"] == "x"


def test_a_deployment_keeps_its_arguments_and_the_names_of_its_volumes() -> None:
    container = {
        "name": "central",
        "args": ["--config", "/etc/lading/central.toml", "--token", CANARY],
        "env": [{"name": "X", "value": CANARY}],
    }
    volumes = [
        {"name": "signing", "secret": {"secretName": "lading-central-signing", "items": [{"path": CANARY}]}},
        {"name": "inline", "csi": {"volumeAttributes": {"password": CANARY}}},
    ]
    spec = {"replicas": 2, "template": {"spec": {"containers": [container], "volumes": volumes}}}
    kept = keep({"metadata": {"name": "lading-central"}, "spec": spec}, DEPLOYMENT)
    assert CANARY not in json.dumps(kept)
    inside = kept["spec"]["template"]["spec"]
    assert inside["containers"][0]["args"][:2] == ["--config", "/etc/lading/central.toml"]
    assert inside["volumes"] == [{"name": "signing", "secret": {"secretName": "lading-central-signing"}}, {"name": "inline"}]


def test_a_config_map_keeps_files_that_are_not_secret() -> None:
    result = {
        "metadata": {"name": "c", "annotations": {"kubectl.kubernetes.io/last-applied-configuration": CANARY}},
        "data": {"central.toml": f'listen = "x"\ntoken = "{CANARY}"\n', "private.pem": CANARY, "proxy": f"http://u:{CANARY}@p"},
        "binaryData": {"blob": CANARY},
    }
    kept = config_map(result)
    assert CANARY not in json.dumps(kept)
    assert kept["data"]["central.toml"].startswith('listen = "x"\n')
    assert set(kept["data"]) == {"central.toml", "private.pem", "proxy"}


@pytest.mark.parametrize(
    ("source", "message", "ours", "stays"),
    [
        ("kubelet", f'exec: "{CANARY}": not found', False, False),
        ("kubelet", "Error: lading: device-held: GPU 0", False, True),
        ("kubelet", 'MountVolume.SetUp failed: secret "lading-central-signing" not found', True, True),
        ("kube-scheduler", "0/5 nodes are available", False, True),
        ("lading-central", "evicted for team-a/urgent", False, True),
        ("lading-central", f"password={CANARY}", False, False),
        ("somebody", CANARY, False, False),
    ],
)
def test_the_message_of_an_event_is_kept_if_it_is_about_lading(source: str, message: str, ours: bool, stays: bool) -> None:
    result = {
        "metadata": {"name": "e"},
        "reason": "Failed",
        "message": message,
        "source": {"component": source},
        "note": CANARY,
    }
    kept = event(result, ours=ours)
    assert CANARY not in json.dumps(kept)
    assert (kept["message"] == message) is stays
    assert kept["reason"] == "Failed"
