"""Run `kubectl lading`: show where devices are, why a pod does not run, and what would help."""
