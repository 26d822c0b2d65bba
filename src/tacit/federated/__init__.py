"""A round of federated training: what users compute, how they are summed, what the server does."""
