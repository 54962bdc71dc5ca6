"""Check whether the installation is healthy, and whether it may be upgraded."""
