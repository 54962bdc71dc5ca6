"""Replay gangs under several rules of starting them: jobs whose pods start together, wait, run and end together."""
