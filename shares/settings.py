"""Define every setting of the share server: configuration key, flag, default, help.

Tests: tests/unit/shares/test_status.py
"""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import msgspec

from lading.log import Level
from lading.settings import Setting
from lading.sharegrant import FOLDER
from lading.sharestatus import SOCKET_PATH
from shares.policy.fair import Fair
from shares.policy.model import Policy
from shares.policy.window import Window

CONFIG: Final = Path("/etc/lading/shares.toml")


class PolicyName(StrEnum):
    FAIR = "fair"
    WINDOW = "window"


POLICIES: Final[dict[PolicyName, type[Policy]]] = {PolicyName.FAIR: Fair, PolicyName.WINDOW: Window}


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    shares_dir: Annotated[str, Setting("folder of the grants that lading-hooks writes; the same as its shares_dir")] = str(
        FOLDER
    )
    listen: Annotated[str, Setting("socket that answers `lading-shares status`")] = SOCKET_PATH
    policy: Annotated[
        PolicyName, Setting("who goes first: fair (start-time fair queueing), or window (Gemini's use within 10 s)")
    ] = PolicyName.FAIR
    count_contexts: Annotated[
        bool,
        Setting(
            "a share has all that the driver counts, with contexts (some hundred MiB for each process); false: allocations only"
        ),
    ] = True
    driver_mount: Annotated[str, Setting("where the driver's files are, if lading-shares runs in a container")] = ""
    nvml_library: Annotated[str, Setting("libnvidia-ml.so.1, where it is not on the loader's path")] = ""
    host_root: Annotated[str, Setting("proc is read below this folder")] = "/"
    metrics: Annotated[str, Setting("address and port of /metrics, /healthz and /readyz; empty for none")] = "127.0.0.1:9444"
    log_level: Annotated[Level, Setting("debug, info, warning or error")] = Level.INFO
