"""Relay HTTP/2 frames: bytes in; bytes for each side and held calls out. No I/O, no clock of its own.

Begin to read with connection.py, which uses flow control, directions, and lading.http2's frames and header blocks.
"""
