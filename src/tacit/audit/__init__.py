"""Finding out what a model memorized, and putting a number on it."""
