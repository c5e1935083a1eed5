"""Runs what the planner describes: a torch twin of the same blocks, transformers' models, and timed operations."""
