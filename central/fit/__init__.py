"""Decide whether and how a pod's devices fit a node: pure, from an Ask and a NodeRoom."""
