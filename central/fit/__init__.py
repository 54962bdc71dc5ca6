"""Decide whether and how a pod's devices fit a node: pure, from a DeviceRequest and a NodeRoom."""
