"""One pod: which devices it has, or why it waits and what would help."""
