"""What the daemons share: names, settings, logs, sockets, and the runtime's lists. Nothing here decides anything."""

__version__ = "0.1.0"
