"""`lading-runtimeproxy doctor`: check kubelet's way to its runtime, and to the hooks."""
