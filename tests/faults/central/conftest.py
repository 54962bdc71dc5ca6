"""Provide the fixtures of the unit tests of central."""

from tests.unit.central.conftest import cluster, loop_factory, scheduler

__all__ = ["cluster", "loop_factory", "scheduler"]
