"""From a decision to a bound pod, and what is known of how that ended."""
