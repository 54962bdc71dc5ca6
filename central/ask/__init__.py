"""What a pod asks for: its JSON → one value, or a refusal in words for its author."""
