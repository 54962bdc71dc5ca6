"""A short folder for sockets."""

from tests.unit.runtimeproxy.conftest import sockets

__all__ = ["sockets"]
