"""What a training is to be (an experiment) and what it leaves behind (a run directory)."""
