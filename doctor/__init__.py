"""Run `lading-doctor`: check a node on which the proxy, the hook server or both are installed."""
