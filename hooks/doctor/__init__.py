"""`lading-hooks doctor`: check whether this node is ready to assign its GPUs and VFs."""
