"""Measures what the proxy costs, beside a direct connection and beside the usual way to write one."""
