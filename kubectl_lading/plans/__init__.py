"""Compute what-if plans: where pods would go, and which moves would free capacity. Nothing is changed."""
