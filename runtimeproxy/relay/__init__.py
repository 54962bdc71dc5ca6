"""The frame relay: bytes in; bytes for each side and held calls out. No I/O, no clock of its own.

Begin with connection.py; it uses flow control, directions, and lading.http2's frames and header blocks.
"""
