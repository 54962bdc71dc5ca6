"""Run a node of real kernel objects in QEMU: a Debian guest with a profile's sockets, switches, cards and VFs."""
