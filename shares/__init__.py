"""Enforce shares of cards on a node: a server gives turns of a card, and a library in the container waits for them."""
