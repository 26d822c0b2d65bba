"""Many trainings, one table."""
