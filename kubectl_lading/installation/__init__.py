"""Is the installation well, and may it be upgraded."""
