"""One pod: what it was given, or why it waits and what would help."""
