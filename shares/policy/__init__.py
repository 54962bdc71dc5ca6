"""Decide whose turn a card is: pure, in nanoseconds, with the time as a parameter."""
