"""Provide the fixtures of node tests: one private containerd for the session, and pods through a real CRI client.

They need root, containerd and runc (`tests.fakes.needs`: without them they are skipped, in CI they fail). A test that fails
shows the ends of the logs that its fixtures named in `tests.logs.LOGS`.

`site` is a node with both daemons, shared by the tests of a module: a module that wants other settings has a `running` of its
own. A test that stops daemons, or breaks the node, starts its own with `start_site`.

`host` and `pod` are network namespaces of one test, `kernel` is what moves devices between them.
"""

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Protocol

import pytest

from hooks.attach.kernel import Kernel
from hooks.attach.netlink import HostKernel
from hooks.frontends.nri.guard.build import build as compile_guard
from hooks.host.ldcache import NAME as LDCACHE
from hooks.vendors.nvidia.ldcache.build import build as compile_ldcache
from lading.compiling import find_compiler
from simnode.build import build
from simnode.containerd import Binaries, PrivateContainerd, find_unpacked, read_version
from simnode.containerd_config import has_cdi
from simnode.cri import Cri
from simnode.cuda import CudaDriver, install_fake_cuda
from simnode.daemons import LadingNode
from simnode.images import default_cache
from simnode.vf_folder import FOLDER
from simnode.vf_rig import VfRig, vf_profile
from tests.conftest import Runtimes
from tests.fakes.namespaces import Netns
from tests.fakes.needs import need
from tests.node.site import Site, eventually, open_site
from tests.node.vf_site import NODE, VfNode
from tests.started import Started


class StartLading(Protocol):
    def __call__(
        self,
        profile: str = "demo-8gpu",
        *,
        hooks: Mapping[str, object] | None = None,
        proxy: Mapping[str, object] | None = None,
        runtime: PrivateContainerd | None = None,
        tokens: bool = False,
        nri: bool = False,
    ) -> LadingNode:
        """Start the daemons on a new simulated node, in front of the session's containerd or of `runtime`."""


class StartVfs(Protocol):
    def __call__(
        self,
        *,
        pfs: int = 2,
        vfs: int = 2,
        exclusive: bool = False,
        old_kernel: bool = False,
        hooks: Mapping[str, object] | None = None,
        runtime: PrivateContainerd | None = None,
        nri: bool = False,
    ) -> VfNode:
        """Start the daemons on a new node whose VFs are network devices. Assignments are central's, without a signature."""


def newer_containerds() -> list[Binaries]:
    """Return the containerds with CDI and NRI: those that `simnode.install` unpacked, and those in the folders of
    LADING_CONTAINERD_DIRS, which colons separate."""
    listed = (Path(folder) for folder in os.environ.get("LADING_CONTAINERD_DIRS", "").split(":") if folder)
    result = [Binaries(folder=folder, version=read_version(folder / "containerd")) for folder in listed]
    unpacked = (find_unpacked(prefix, default_cache()) for prefix in ("1.7.", "2."))
    return [binaries for binaries in (*result, *filter(None, unpacked)) if has_cdi(binaries.version)]


NEWER: Final[list[Binaries | None]] = [*newer_containerds()] or [None]
*OLDER, NEWEST = NEWER


@pytest.fixture(
    scope="module",
    params=[*(pytest.param(one, marks=pytest.mark.long) for one in OLDER), NEWEST],
    ids=lambda result: result.version if result else "none",
)
def newer(request: pytest.FixtureRequest, binaries: Binaries, runtimes: Runtimes) -> PrivateContainerd:
    """Start each newer containerd as a private instance. The fixture `binaries` checks for root and runc."""
    need(request.param is not None, "a newer containerd (run: python -m simnode.install 1.7. 2.)")
    return runtimes(request.param)


@pytest.fixture
def own_specs(newer: PrivateContainerd) -> Iterator[None]:
    """Remove the CDI specs after the test: the runtime belongs to the module, and the next node has other cards."""
    yield
    for path in newer.layout.cdi.iterdir():
        path.unlink()


@pytest.fixture(scope="session")
def launched_guard(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile the guard, which containerd launches, or starts as the program of the runtime handler. Return its path."""
    need(shutil.which("cc") is not None, "a C compiler")
    program = tmp_path_factory.mktemp("guard") / "ladingguard"
    compile_guard(program, find_compiler())
    return program


@pytest.fixture(scope="session")
def ldcache_hook(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile the hook that makes the loader's cache of containers. Return its path."""
    need(shutil.which("cc") is not None, "a C compiler")
    program = tmp_path_factory.mktemp("ldcache") / LDCACHE
    compile_ldcache(program, find_compiler())
    return program


@pytest.fixture(scope="module")
def runtime_handler(newer: PrivateContainerd, launched_guard: Path) -> None:
    """Install the program of the runtime handler `lading` at the path that the configuration of `newer` names."""
    newer.layout.handler.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(launched_guard, newer.layout.handler)


@pytest.fixture
def cri(containerd: PrivateContainerd) -> Iterator[Cri]:
    """Yield a CRI client that is connected to containerd directly. Its pods are removed after the test."""
    with containerd.client() as client:
        yield client


def _starter(containerd: PrivateContainerd, pytestconfig: pytest.Config) -> Iterator[StartLading]:
    with Started(pytestconfig) as started:

        def start(
            profile: str = "demo-8gpu", *, runtime: PrivateContainerd | None = None, nri: bool = False, **options: Any
        ) -> LadingNode:
            runtime = runtime or containerd
            return started.lading(runtime, profile, nri=runtime.nri_socket if nri else None, **options)

        yield start


start_lading = pytest.fixture(_starter)
share_lading = pytest.fixture(scope="module")(_starter)


@pytest.fixture(scope="module")
def share_vfs(containerd: PrivateContainerd, pytestconfig: pytest.Config) -> Iterator[StartVfs]:
    with Started(pytestconfig) as started:

        def start(
            *,
            pfs: int = 2,
            vfs: int = 2,
            hooks: Mapping[str, object] | None = None,
            runtime: PrivateContainerd | None = None,
            nri: bool = False,
            **kernel: bool,
        ) -> VfNode:
            runtime = runtime or containerd
            folder = started.folder()
            node = build(vf_profile(pfs=pfs, vfs=vfs), folder / "node")
            rig = started.enter_context(VfRig(node, folder / "rig", **kernel))
            settings = {"assignments": ["unsigned"], "node_name": NODE, "netdev": True, "reconcile_interval": 1}
            settings["nvml_library"] = ""  # there is no GPU
            lading = started.lading(
                runtime,
                node,
                folder=folder,
                nri=runtime.nri_socket if nri else None,
                hooks={**settings, **(hooks or {})},
                hooks_module="simnode.vf_daemon",
                hooks_env={FOLDER: str(rig.folder.path)},
            )
            return VfNode(lading, rig)

        yield start


@pytest.fixture(scope="module")
def running(share_lading: StartLading) -> LadingNode:
    """Start the module's node: mode `devices`, manual assignments, and the hardware of the demo, eight GPUs and sixteen VFs."""
    return share_lading()


@pytest.fixture(scope="module")
def driver(running: LadingNode) -> CudaDriver:
    """Install a fake libcuda on the module's node."""
    return install_fake_cuda(running.node)


@pytest.fixture
def site(running: LadingNode, containerd: PrivateContainerd) -> Iterator[Site]:
    """Yield the module's node, and check after the test that no device is granted any more."""
    with open_site(running, containerd) as site:
        yield site
    eventually(site.check_nothing_granted)


StartSite = Callable[..., Site]  # the parameters are those of StartLading


@pytest.fixture
def start_site(start_lading: StartLading, containerd: PrivateContainerd) -> Iterator[StartSite]:
    """Yield a function that starts a node of the test's own, on which the test creates pods."""
    with contextlib.ExitStack() as stack:

        def start(profile: str = "demo-8gpu", **options: Any) -> Site:
            lading = start_lading(profile, **options)
            return stack.enter_context(open_site(lading, options.get("runtime", containerd)))

        yield start


@pytest.fixture(scope="session")
def needs_namespaces() -> None:
    need(os.geteuid() == 0, "root")
    need(shutil.which("ip") is not None and shutil.which("nsenter") is not None, "ip and nsenter")


@pytest.fixture
def host() -> Iterator[Netns]:
    """Yield a network namespace for the host, with a device `vf0` that is up, as a driver leaves it."""
    with Netns() as host:
        host.ip("link add vf0 type veth peer name peer0")
        host.ip("link set vf0 up")
        host.ip("link set peer0 up")
        yield host


@pytest.fixture
def pod() -> Iterator[Netns]:
    with Netns() as pod:
        yield pod


@pytest.fixture
def kernel(tmp_path: Path) -> Kernel:
    return HostKernel(tmp_path)
