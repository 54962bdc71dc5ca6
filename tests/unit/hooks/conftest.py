"""Share fixtures between the tests of the hook server: a log that can be read back, and a short folder for sockets."""

from tests.unit.runtimeproxy.conftest import log, records, sockets

__all__ = ["log", "records", "sockets"]
