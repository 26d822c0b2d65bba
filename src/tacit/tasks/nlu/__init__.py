"""Intent and slot models of what people say to an assistant."""
