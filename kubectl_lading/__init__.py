"""`kubectl lading`: what is where, why a pod does not run, and what would help."""
