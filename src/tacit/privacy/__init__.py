"""What a release costs: events, accountants, calibration, the ledger, keyed randomness."""
