"""Parse a pod's device request: from JSON to one value, or to a refusal with a message for its author."""
