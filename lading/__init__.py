"""Hold common code of the daemons: names, settings, logs, sockets, and the runtime's lists. Nothing here makes decisions."""

import os

__version__ = "0.1.0"  # version of the wheel, the images and the chart; newTag in deploy/central and deploy/node is the same

# grpc's core would write lines to stderr beside the log; it reads this variable once, when it is imported.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
