"""What central reads of the API server and how it stays the only one: objects, list and watch, the leader's lease."""
