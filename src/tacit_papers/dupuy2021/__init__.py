"""Dupuy et al. 2021, An Efficient DP-SGD Mechanism for Large Scale NLU Models: Tables 1 and 2."""
