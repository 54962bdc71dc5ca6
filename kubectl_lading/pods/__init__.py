"""Show the devices of pods, why a pod waits, and what would help."""
