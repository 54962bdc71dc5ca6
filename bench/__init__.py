"""Benchmarks: what the proxy costs, compared with a direct connection and with the usual way to write one."""
