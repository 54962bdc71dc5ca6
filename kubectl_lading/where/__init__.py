"""Show where devices are: nodes, one node as a drawing, one card, and devices out of service."""
