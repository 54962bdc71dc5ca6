"""Divide the cluster between teams: quotas in a tree, what each may use now, and what it must give back."""
