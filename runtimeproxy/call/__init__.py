"""Describe a held CRI call: its method and stage, its pod and container, and its outcome."""
