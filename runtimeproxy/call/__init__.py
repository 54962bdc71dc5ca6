"""What a held CRI call is: its method and stage, whose pod and container it is about, and whom it concerns."""
