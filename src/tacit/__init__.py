"""tacit: train language models on people's text without letting the models remember the people."""

__version__ = "0.1.0"
