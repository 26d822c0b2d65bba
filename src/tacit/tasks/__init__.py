"""What a model is trained to do: a package per task."""
