"""Merge the answers of hooks, with an owner for each field, and apply the result to a CRI request."""
