"""The sysdump: what a maintainer needs to know about a cluster, without its secrets."""
