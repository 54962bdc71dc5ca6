"""Code that the daemons share: names, settings, logs, sockets, and the runtime's lists. Nothing here makes decisions."""

import os

__version__ = "0.1.0"  # of the wheel, the images and the chart; newTag in deploy/central and deploy/node is the same

# grpc's core writes its own lines to stderr, without our log; it reads this once, when it is imported.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
