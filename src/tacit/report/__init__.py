"""A run directory in, one self-contained HTML page out: for whoever reviews a privacy claim."""
