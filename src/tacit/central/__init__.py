"""Training in one place, on text that is held centrally: public pre-training."""
