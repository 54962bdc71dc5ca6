"""Measure the cost of the proxy, compared with a direct connection and with the usual way to write one."""
