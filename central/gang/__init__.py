"""Keep gangs (pods that start together or not at all), order them, and find nodes for all members of a gang."""
