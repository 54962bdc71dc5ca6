"""Call the Kubernetes API server, for central and the node's reporter: credentials, calls, errors that name the cause."""
