"""Bagdasaryan et al. 2022, Training a Tokenizer for Free with Private Federated Learning.

What a tokenizer does for the words of users it was not learnt from: Tables 1 and 2, and Figure 4.
"""
