"""Experiments: each runs from one command and writes rows of results."""
