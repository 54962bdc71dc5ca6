"""Who holds what, on every node: rebuilt from what the API server says, changed by one writer."""
