"""The Kubernetes API server as central and the node's reporter speak to it: credentials, calls, errors that say what is so."""
