"""The cluster as people look at it: the ledger's rooms and claims with the nodes' reports, one value a node."""
