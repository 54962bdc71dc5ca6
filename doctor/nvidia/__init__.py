"""Check NVIDIA's cards, their driver, and how containers get them."""
