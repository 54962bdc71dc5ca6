"""The ledger of which pod holds what on every node: rebuilt from the API server's objects, changed by one writer."""
