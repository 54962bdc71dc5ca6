"""Serve the page for people, and its JSON: where pods and devices are, kept current with the ledger while the page is open."""
