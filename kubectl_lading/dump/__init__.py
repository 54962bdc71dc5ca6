"""What a maintainer needs to see of a cluster, without its secrets."""
