"""Train, evaluate, predict: each reads top to bottom."""
