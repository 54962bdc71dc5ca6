"""Find the API server and the namespace, as kubectl finds them.

It takes `Flags` and $KUBECONFIG. It returns a client, and the namespace. ConfigError where a kubeconfig cannot be used. In a
pod without any, its service account is used.
"""

import contextlib
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Final

from kubectl_lading.flags import Flags
from kubectl_lading.terminal.progress import Patience
from lading import __version__
from lading.errors import ConfigError, LadingError
from lading.kube.client import PAGE_TIMEOUT_S, TIMEOUT_S, KubeClient
from lading.kube.config import open_access, read_namespace
from lading.kube.errors import ForbiddenError, TimedOutError, UnauthorizedError, UnreachableError

USER_AGENT: Final = f"kubectl-lading/{__version__}"
DEFAULT: Final = "default"
_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


@contextlib.asynccontextmanager
async def connect(flags: Flags) -> AsyncIterator[KubeClient]:
    access = open_access(find_kubeconfig(flags), context=flags.context)
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


def find_kubeconfig(flags: Flags) -> Path | None:
    """Return the kubeconfig; None where there is none and this runs in a pod."""
    if flags.kubeconfig:
        return Path(flags.kubeconfig)
    if several := os.environ.get("KUBECONFIG", ""):
        return Path(several)  # several files, separated by colons, are merged
    own = Path.home() / ".kube" / "config"
    return None if _ACCOUNT.exists() and not own.exists() else own


def find_namespace(flags: Flags) -> str:
    """Return the namespace of a command about one pod."""
    if flags.namespace:
        return flags.namespace
    path = find_kubeconfig(flags)
    if path is None:
        return _ACCOUNT.read_text().strip()
    return read_namespace(path, flags.context) or DEFAULT


def find_scope(flags: Flags) -> str:
    """Return the namespace of a command about many pods; empty: all."""
    return "" if flags.all_namespaces else find_namespace(flags)


def find_pod(flags: Flags, word: str) -> tuple[str, str]:
    """Return namespace and name of the pod that the user names: NAME, or NAMESPACE/NAME."""
    namespace, _, name = word.rpartition("/")
    if not name:
        raise ConfigError(f"cannot tell which pod {word!r} is: it has no name", hint="write NAME, or NAMESPACE/NAME")
    return namespace or find_namespace(flags), name


@contextlib.contextmanager
def _hinted() -> Iterator[None]:
    """Add a hint to an error of the API server: what the user can do about it."""
    try:
        yield
    except (ForbiddenError, UnauthorizedError) as e:
        raise LadingError(e.message, hint="ClusterRole lading-reader (deploy/rbac/reader.yaml) has the rights to look") from e
    except TimedOutError as e:
        hint = "kubectl get --raw /readyz, with the same --context, has to work; --request-timeout gives a busy server longer"
        raise LadingError(e.message, hint=hint) from e
    except UnreachableError as e:
        raise LadingError(e.message, hint="kubectl get nodes, with the same --context and --kubeconfig, has to work") from e
