"""Thakkar et al. 2020, Understanding Unintended Memorization in Federated Learning.

Which ways of training memorize canaries that were planted in the users' text: Tables 1 to 7.
"""
