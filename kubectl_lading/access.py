"""Find the API server and the namespace, as kubectl finds them.

Take `Flags` and $KUBECONFIG; return a client and the namespace. Raise ConfigError if a kubeconfig cannot be used. In a pod
without a kubeconfig, use the pod's service account.
"""

import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Final

from kubectl_lading.flags import Flags
from kubectl_lading.terminal.progress import Patience
from lading import __version__
from lading.errors import ConfigError, LadingError
from lading.kube.client import KubeClient
from lading.kube.config import KubectlRules, open_access_as_kubectl, read_namespace
from lading.kube.errors import ForbiddenError, TimedOutError, UnauthorizedError, UnreachableError
from lading.kube.resource import PAGE_TIMEOUT_S, TIMEOUT_S

# kubectl's names of the two kinds. A namespace with such a name is meant by -n only.
_PODS: Final = frozenset({"pod", "pods", "po"})
_NODES: Final = frozenset({"node", "nodes", "no"})
USER_AGENT: Final = f"kubectl-lading/{__version__}"


@contextlib.asynccontextmanager
async def connect(flags: Flags) -> AsyncIterator[KubeClient]:
    access = open_access_as_kubectl(_rules(flags))
    patience = Patience((await access.credentials()).server)
    client = KubeClient(
        access,
        user_agent=USER_AGENT,
        timeout_s=flags.request_timeout_s or TIMEOUT_S,
        page_timeout_s=flags.request_timeout_s or PAGE_TIMEOUT_S,
        around=patience.around,
    )
    async with client:
        with _hinted():
            yield client


def find_namespace(flags: Flags) -> str:
    """Return the namespace for a command about one pod: of -n, else kubectl's."""
    return flags.namespace or read_namespace(_rules(flags))


def find_scope(flags: Flags) -> str:
    """Return the namespace for a command about many pods; empty for all namespaces."""
    return "" if flags.all_namespaces else find_namespace(flags)


def find_pod(flags: Flags, word: str) -> tuple[str, str]:
    """Return namespace and name of the pod that the user names: NAME, pod/NAME, or NAMESPACE/NAME."""
    namespace, _, name = word.rpartition("/")
    if not name:
        raise ConfigError(f"cannot tell which pod {word!r} is: it has no name", hint="write NAME, pod/NAME or NAMESPACE/NAME")
    if namespace in _PODS:
        namespace = ""
    return namespace or find_namespace(flags), name


def find_node_name(word: str) -> str:
    """Return the name of the node that the user names: NAME, or node/NAME as kubectl prints it."""
    kind, _, name = word.rpartition("/")
    return name if kind in _NODES else word


def _rules(flags: Flags) -> KubectlRules:
    return KubectlRules(kubeconfig=flags.kubeconfig, context=flags.context, as_user=flags.as_user)


@contextlib.contextmanager
def _hinted() -> Iterator[None]:
    """Add a hint to an error of the API server: how the user can solve the problem."""
    try:
        yield
    except UnauthorizedError as e:
        hint = "you are not logged in, or your credentials have expired: log in again; kubectl auth whoami has to work"
        raise LadingError(e.message, hint=hint) from e
    except ForbiddenError as e:
        raise LadingError(e.message, hint="ClusterRole lading-reader (deploy/rbac/reader.yaml) has the rights to look") from e
    except TimedOutError as e:
        hint = "kubectl get --raw /readyz, with the same --context, has to work; --request-timeout gives a busy server longer"
        raise LadingError(e.message, hint=hint) from e
    except UnreachableError as e:
        raise LadingError(e.message, hint="kubectl get nodes, with the same --context and --kubeconfig, has to work") from e
