"""Write to the terminal: tables, amounts as text, progress, completion."""
