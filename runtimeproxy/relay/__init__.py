"""The frame relay: bytes in; bytes for each side and held calls out. No I/O, no clock of its own.

connection.py tells the whole story; what it is told in: flow control, directions, and lading.http2's frames and header blocks.
"""
