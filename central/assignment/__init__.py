"""What a pod is given: the devices of each container, what they take of the node, and the annotation that says so."""
