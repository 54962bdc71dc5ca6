"""Define what a pod is assigned: the devices of each container, what they take of the node, and the annotation for it."""
