"""Check a node or an installation: read, decide, show."""
