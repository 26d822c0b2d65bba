"""Understanding utterances: what is asked for (the intent) and about what (the slots)."""
