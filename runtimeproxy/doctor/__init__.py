"""`lading-runtimeproxy doctor`: is kubelet's way to its runtime, and to the hooks, all right?"""
