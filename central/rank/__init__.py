"""Compare all nodes for one request: which fit, and which is the best, with results cached until a node changes."""
