"""McMahan et al. 2018, Learning Differentially Private Recurrent Language Models.

Tables 1, 2, 4 and 5 are recipes that `tacit compare` puts side by side; Table 3 has a command.
"""
