"""Pre-training on public text: next words for language models, masked words for BERT."""
