"""Text: reading it, cutting it into windows, scoring what comes back."""
