"""The page for people, and its JSON: what is where, kept up with the ledger while somebody looks."""
