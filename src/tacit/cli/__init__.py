"""The command line: one file per command; parses, calls, prints."""
