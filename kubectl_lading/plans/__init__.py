"""What if: where pods would go, and which moves would make room. Nothing is changed."""
