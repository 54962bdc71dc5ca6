"""Define a pod's assignment: the devices of each container, the amounts that they take on the node, and the annotation."""
