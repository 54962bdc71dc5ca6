"""Run `lading-runtimeproxy`: parse its command line, check its settings, and start it.

Tests: tests/unit/runtimeproxy/test_settings.py
"""

import argparse
import asyncio
import faulthandler
import resource
import sys
from collections.abc import Sequence
from typing import Final

from lading import __version__
from lading.errors import ConfigError, LadingError, die
from lading.health import parse_address
from lading.log import open_log
from lading.settings import add_flags, parse_args
from lading.sockets import parse_endpoint
from runtimeproxy.daemon import run
from runtimeproxy.settings import CONFIG, Settings

# The event loop waits this many seconds for the GIL while a thread reads a large message; a call needs the GIL several times.
SWITCH_S: Final = 0.0005
# Each connection needs two file descriptors, besides the process's own.
DESCRIPTORS: Final = 8192


def main(argv: Sequence[str] | None = None) -> None:
    try:
        _serve(sys.argv[1:] if argv is None else argv)
    except LadingError as e:
        die(e)


def _serve(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="lading-runtimeproxy",
        description="The CRI proxy: set kubelet's --container-runtime-endpoint to its socket. It forwards calls unchanged to "
        "the container runtime, and asks hook servers about the few calls that create containers.",
        epilog="lading-doctor   checks this node.  "
        "journalctl -t lading-runtimeproxy LADING_EVENT=call.refused   shows what was refused and why",
    )
    parser.add_argument("--version", action="version", version=f"lading-runtimeproxy {__version__}")
    add_flags(parser, Settings, config=CONFIG)
    settings = parse_args(Settings, parser.parse_args(argv), check)
    log = open_log("lading-runtimeproxy", settings.log_level)
    sys.setswitchinterval(SWITCH_S)
    faulthandler.enable()  # shows where the loop hung when systemd's watchdog ends the process
    _raise_descriptor_limit()
    asyncio.run(run(settings, log))


def check(settings: Settings) -> None:
    """Check the rules that the types of the settings cannot express. Raises ConfigError."""
    listen_path, runtime = parse_endpoint(settings.listen), parse_endpoint(settings.runtime_endpoint)
    if listen_path == runtime:
        raise ConfigError(f"listen and runtime_endpoint are both {runtime}", hint="the proxy needs a socket of its own")
    parse_address(settings.metrics)
    for prefix in settings.guarded_prefixes:
        if not prefix or not prefix.isascii():
            raise ConfigError(
                f"guarded_prefixes: {prefix!r} is not the beginning of an annotation key", hint='for example "lading.dev/"'
            )


def _raise_descriptor_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < DESCRIPTORS:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(DESCRIPTORS, hard), hard))


if __name__ == "__main__":
    main(sys.argv[1:])
