"""What people read and type: tables, amounts in words, progress, completion."""
