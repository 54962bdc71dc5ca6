"""Say what a held CRI call is: its method and stage, its pod and container, and the hooks that it concerns."""
