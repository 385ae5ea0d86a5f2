"""The card: its allocator, what a step asks of it, and the catalogue of cards."""
