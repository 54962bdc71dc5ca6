"""Serve HTTP/1.1 within limits, for the extender and for the page; `lading.health` serves metrics and health in all daemons."""
