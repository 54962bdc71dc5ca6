"""The terminal: tables, amounts in words, progress, completion."""
