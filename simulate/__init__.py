"""A recorded cluster and its pods, replayed through the code that serves kube-scheduler: `lading-central simulate`."""
