"""Merge kubeconfig files, and choose the cluster and the user of a context, by the rules of kubectl.

Files are texts with their paths; file names in the results are absolute. ConfigError is raised for text that is not a
kubeconfig, and for a context that does not exist. A message quotes no line of a file, because a line may be a secret. Pure.

The first file that has a cluster, user or context of a name defines it alone, and the first file with a current context chooses
the current context. A file without content counts as absent.

Source: k8s.io/client-go tools/clientcmd (`loader.go`, `client_config.go`) and tools/clientcmd/api/v1 (`types.go`).
"""

import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import msgspec
import yaml

from lading.errors import ConfigError


# Unknown keys are ignored, as kubectl does.
class Extension(msgspec.Struct, frozen=True, kw_only=True, rename="kebab"):
    name: str = ""
    extension: Any = None


class Cluster(msgspec.Struct, frozen=True, kw_only=True, rename="kebab"):
    server: str = ""
    tls_server_name: str = ""
    insecure_skip_tls_verify: bool = False
    certificate_authority: str = ""  # file name; the data have precedence
    certificate_authority_data: bytes = b""
    proxy_url: str = ""
    disable_compression: bool = False
    extensions: tuple[Extension, ...] = ()


class ExecVariable(msgspec.Struct, frozen=True):
    name: str = ""
    value: str = ""


class Exec(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Represent a program that prints credentials."""

    command: str = ""
    args: tuple[str, ...] = ()
    env: tuple[ExecVariable, ...] = ()
    api_version: str = ""
    install_hint: str = ""
    provide_cluster_info: bool = False
    interactive_mode: str = ""


class AuthProvider(msgspec.Struct, frozen=True, kw_only=True, rename="kebab"):
    name: str = ""
    config: dict[str, str] = {}


class User(msgspec.Struct, frozen=True, kw_only=True, rename="kebab"):
    client_certificate: str = ""
    client_certificate_data: bytes = b""
    client_key: str = ""
    client_key_data: bytes = b""
    token: str = ""
    token_file: str = msgspec.field(name="tokenFile", default="")  # file name; has precedence over the token
    as_: str = msgspec.field(name="as", default="")
    as_uid: str = ""
    as_groups: tuple[str, ...] = ()
    as_user_extra: dict[str, tuple[str, ...]] = {}
    username: str = ""
    password: str = ""
    auth_provider: AuthProvider | None = None
    exec: Exec | None = None


class Context(msgspec.Struct, frozen=True, kw_only=True, rename="kebab"):
    cluster: str = ""
    user: str = ""
    namespace: str = ""


class _NamedCluster(msgspec.Struct, frozen=True, kw_only=True, rename="kebab"):
    name: str = ""
    cluster: Cluster = Cluster()


class _NamedUser(msgspec.Struct, frozen=True, kw_only=True, rename="kebab"):
    name: str = ""
    user: User = User()


class _NamedContext(msgspec.Struct, frozen=True, kw_only=True, rename="kebab"):
    name: str = ""
    context: Context = Context()


class _File(msgspec.Struct, frozen=True, kw_only=True, rename="kebab"):
    api_version: str = msgspec.field(name="apiVersion", default="")
    kind: str = ""
    current_context: str = ""
    clusters: tuple[_NamedCluster, ...] = ()
    users: tuple[_NamedUser, ...] = ()
    contexts: tuple[_NamedContext, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Kubeconfig:
    """Hold the entries of one file, or of several merged files."""

    current_context: str
    clusters: Mapping[str, Cluster]
    users: Mapping[str, User]
    contexts: Mapping[str, Context]

    def find_context(self, name: str) -> Context | None:
        """Return the context with the name, or the current one if the name is empty; None if no context is current. Raises
        ConfigError."""
        name = name or self.current_context
        if not name:
            return None
        if (context := self.contexts.get(name)) is None:
            raise ConfigError(f"cannot use context {name!r}: it does not exist", hint="kubectl config get-contexts lists them")
        return context


class _Loader(yaml.SafeLoader):
    """Load YAML with dates as texts, as kubectl does."""

    yaml_implicit_resolvers = {  # noqa: RUF012  PyYAML's own attribute
        first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


_VERSION: Final = ("", "v1")
_KIND: Final = ("", "Config")
E = TypeVar("E", Cluster, User, Context)


def parse_kubeconfig(text: str, path: str) -> Kubeconfig:
    """Parse one file. `path` is absolute: relative file names are below its folder. Raises ConfigError."""
    try:
        document: object = next(yaml.load_all(text, _Loader), None)
        file = msgspec.convert({} if document is None else _without_nulls(document), _File)
    except yaml.MarkedYAMLError as e:
        line = f" in line {e.problem_mark.line + 1}" if e.problem_mark else ""
        raise ConfigError(f"cannot read {path}: not YAML{line}: {e.problem}") from None
    except (yaml.YAMLError, RecursionError):
        raise ConfigError(f"cannot read {path}: not YAML") from None
    except msgspec.ValidationError as e:
        raise ConfigError(f"cannot read {path}: not a kubeconfig: {e}") from None
    if file.kind not in _KIND or file.api_version not in _VERSION:
        raise ConfigError(f"cannot read {path}: it is a {file.kind} of {file.api_version}, not a Config of v1")
    folder = posixpath.dirname(path)
    return Kubeconfig(
        current_context=file.current_context,
        clusters=_index(path, "clusters", [(one.name, _resolve_cluster(one.cluster, folder)) for one in file.clusters]),
        users=_index(path, "users", [(one.name, _resolve_user(one.user, folder)) for one in file.users]),
        contexts=_index(path, "contexts", [(one.name, one.context) for one in file.contexts]),
    )


def merge_kubeconfigs(files: Sequence[Kubeconfig]) -> Kubeconfig:
    """Merge files; an earlier file has precedence over a later one."""
    backwards = files[::-1]
    return Kubeconfig(
        current_context=next((file.current_context for file in files if file.current_context), ""),
        clusters={name: one for file in backwards for name, one in file.clusters.items()},
        users={name: one for file in backwards for name, one in file.users.items()},
        contexts={name: one for file in backwards for name, one in file.contexts.items()},
    )


def _without_nulls(value: object) -> object:
    """Drop keys whose value is null: kubectl reads them as absent."""
    if isinstance(value, dict):
        return {key: _without_nulls(one) for key, one in value.items() if one is not None}
    return [_without_nulls(one) for one in value] if isinstance(value, list) else value


def _index(path: str, field: str, entries: Sequence[tuple[str, E]]) -> dict[str, E]:
    index = dict(entries)
    if len(index) < len(entries):
        raise ConfigError(f"cannot read {path}: two entries of {field} have the same name")
    return index


def _resolve_cluster(cluster: Cluster, folder: str) -> Cluster:
    return msgspec.structs.replace(cluster, certificate_authority=_below(folder, cluster.certificate_authority))


def _resolve_user(user: User, folder: str) -> User:
    plugin = user.exec
    if plugin is not None and "/" in plugin.command:  # a command without a slash is searched in $PATH
        plugin = msgspec.structs.replace(plugin, command=_below(folder, plugin.command))
    return msgspec.structs.replace(
        user,
        client_certificate=_below(folder, user.client_certificate),
        client_key=_below(folder, user.client_key),
        token_file=_below(folder, user.token_file),
        exec=plugin,
    )


def _below(folder: str, file: str) -> str:
    return posixpath.join(folder, file) if file else ""
