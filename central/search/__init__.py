"""Decide purely whether and how a pod's devices fit a node, from a DeviceRequest and a NodeCapacity."""
