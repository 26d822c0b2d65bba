"""Tables of McMahan et al. 2018, "Learning Differentially Private Recurrent Language Models"."""
