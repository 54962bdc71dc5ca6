"""Divide the cluster between teams by a tree of quotas: how much each may use now, and must give back."""
