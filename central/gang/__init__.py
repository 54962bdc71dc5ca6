"""Gangs: pods that start together or not at all. Which there are, which is next, and where all members of one would be."""
