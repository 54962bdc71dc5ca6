"""Decide which container gets the next turn of a card. Pure: times are nanoseconds, and the current time is a parameter."""
