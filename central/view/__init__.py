"""Describe the cluster to people: the ledger's claims and free capacity, joined with the node reports, in one value a node."""
