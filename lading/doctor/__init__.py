"""The common parts of the daemons' `doctor` commands, which check a node and change nothing."""
