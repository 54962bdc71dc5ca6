"""Enforce shares of cards on a node: a server that gives turns, and a library in the container that keeps to them."""
