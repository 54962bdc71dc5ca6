"""Serve the web page and its JSON: pods and devices by node, kept current with the ledger while the page is open."""
