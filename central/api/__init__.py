"""The objects that central reads from the API server, list and watch, and the leader's lease."""
