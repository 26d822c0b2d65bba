"""How well a model predicts: accuracy, perplexity, word-level figures, baselines, generated text.

Everything here is a pure function of a predictor and token sequences, and equals scoring one
sequence at a time: batching changes the speed only.
"""
