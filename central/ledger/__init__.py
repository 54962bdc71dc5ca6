"""Keep the ledger of the devices that each pod holds on each node: rebuilt from the API server's objects, changed by one
writer."""
