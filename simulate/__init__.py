"""Replay a recorded cluster and its pods through the code that serves kube-scheduler: `lading-central simulate`."""
