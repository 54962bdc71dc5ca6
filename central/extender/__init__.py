"""Serve the requests of kube-scheduler."""
