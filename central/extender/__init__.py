"""What kube-scheduler asks and is answered."""
