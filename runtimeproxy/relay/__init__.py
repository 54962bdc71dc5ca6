"""The frame relay: bytes in; bytes for each side and held calls out. No I/O, no clock of its own.

connection.py tells the whole story; frames, headers, windows and messages are what it is told in.
"""
