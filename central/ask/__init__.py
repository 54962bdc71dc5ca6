"""A pod's device request: its JSON → one value, or a refusal with a message for its author."""
