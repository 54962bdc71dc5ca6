"""Call the API server's REST interface with JSON over HTTPS, without a Kubernetes client library, for tests.

A call takes a path and a body. It returns the decoded answer, or raises KubeError with the status and the server's message.
Each call makes a new connection, so a restart of the server needs no special case. Source: Kubernetes API concepts (verbs,
subresources, Status).
"""

import http.client
import json
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NewType
from urllib.parse import quote

from lading.errors import LadingError
from simnode.pki import KeyPair

Token = NewType("Token", str)  # a bearer's

_PODS = "/api/v1/namespaces/default/pods"
_TIMEOUT_S = 60.0  # on a busy machine, one call that deletes 200 pods takes longer than 15


class KubeError(LadingError):
    """Hold the status and message of a failed call of the API server."""

    def __init__(self, method: str, path: str, status: int, text: str) -> None:
        super().__init__(f"cannot {method} {path}: {status}: {text}")
        self.status = status
        self.text = text


class KubeApi:
    def __init__(self, *, port: int, authority: Path, client: KeyPair | Token) -> None:
        self._port = port
        self._headers = {"Accept": "application/json"}
        self._tls = ssl.create_default_context(cafile=str(authority))
        if isinstance(client, KeyPair):
            self._tls.load_cert_chain(client.certificate, client.key)
        else:
            self._headers["Authorization"] = f"Bearer {client}"

    def call(self, method: str, path: str, body: object = None, *, content_type: str = "application/json") -> Any:
        connection = http.client.HTTPSConnection("127.0.0.1", self._port, context=self._tls, timeout=_TIMEOUT_S)
        try:
            sent = None if body is None else json.dumps(body)
            connection.request(method, path, sent, {**self._headers, "Content-Type": content_type})
            answer = connection.getresponse()
            text = answer.read().decode(errors="replace")
        except OSError as e:
            raise KubeError(method, path, 0, str(e)) from e
        finally:
            connection.close()
        if answer.status >= http.client.BAD_REQUEST:
            raise KubeError(method, path, answer.status, _message(text))
        return json.loads(text) if text.startswith("{") else text

    def ready(self) -> bool:
        return self.has("/readyz")

    def has(self, path: str) -> bool:
        """Report whether a GET of it succeeds; False also while no server answers."""
        try:
            self.call("GET", path)
        except KubeError:
            return False
        return True

    def node(self, name: str) -> Any:
        return self.call("GET", f"/api/v1/nodes/{name}")

    def node_condition(self, name: str, kind: str) -> Mapping[str, str]:
        """Return one of the node's conditions; empty while the node or the condition does not exist."""
        try:
            conditions = self.node(name)["status"].get("conditions", [])
        except KubeError:
            return {}
        return next((c for c in conditions if c["type"] == kind), {})

    def create_pod(self, manifest: Mapping[str, Any]) -> Any:
        return self.call("POST", _PODS, manifest)

    def pods(self) -> list[Any]:
        return list(self.call("GET", _PODS)["items"])

    def pod(self, name: str) -> Any:
        return self.call("GET", f"{_PODS}/{name}")

    def patch_pod(self, name: str, change: Mapping[str, Any], *, subresource: str = "") -> Any:
        path = f"{_PODS}/{name}" + (f"/{subresource}" if subresource else "")
        return self.call("PATCH", path, change, content_type="application/strategic-merge-patch+json")

    def delete_pod(self, name: str, *, grace_s: int = 1) -> None:
        self.call("DELETE", f"{_PODS}/{name}", {"gracePeriodSeconds": grace_s})

    def pod_events(self, name: str) -> list[str]:
        """Return `reason: message` of each event about the pod, as `kubectl describe pod` shows them."""
        selector = quote(f"involvedObject.kind=Pod,involvedObject.name={name}")
        result = self.call("GET", f"/api/v1/namespaces/default/events?fieldSelector={selector}")["items"]
        return [f"{event['reason']}: {event['message']}" for event in result]


def _message(text: str) -> str:
    try:
        return str(json.loads(text)["message"])
    except (ValueError, KeyError, TypeError):
        return text[:500]
