"""Encoders, taggers and their files."""
