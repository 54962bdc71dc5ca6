"""Make a sysdump: data about a cluster for a maintainer, without secrets."""
