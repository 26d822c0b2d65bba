"""Next-word models of people's text."""
