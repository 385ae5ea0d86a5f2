"""Hypothesis without a deadline per example: a busy machine is no failure."""

from hypothesis import settings

settings.register_profile("steady", deadline=None)
settings.load_profile("steady")
