"""From people, an epsilon and a time to an experiment, before anything is trained."""
