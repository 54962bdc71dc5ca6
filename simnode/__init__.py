"""Simulate a node: a folder that `lading-hooks --host-root` reads, for tests, demo and bench; never for a real node."""
