"""What this machine can do and what is in the way."""
