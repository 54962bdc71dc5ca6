"""What the daemons share: names, settings, logs, sockets, and the runtime's lists. Nothing here decides anything."""

import os

__version__ = "0.1.0"

# grpc's core writes lines of its own to stderr, past our log; it reads this once, when it is imported.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
