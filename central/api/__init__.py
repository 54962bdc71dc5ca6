"""Read objects from the API server by list and watch."""
