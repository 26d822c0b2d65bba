"""Pre-training language models on public text."""
