"""What is where: nodes, one node drawn, one card, and devices taken out of service."""
