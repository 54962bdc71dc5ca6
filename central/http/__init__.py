"""Serve HTTP/1.1 within limits, for the extender and for the page."""
