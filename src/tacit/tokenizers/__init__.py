"""Text into tokens: word, BPE, WordPiece and character tokenizers, where they come from, caches."""
