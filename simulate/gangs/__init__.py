"""Replays with gangs: jobs whose pods start together, wait, run and end together, under several rules of starting them."""
