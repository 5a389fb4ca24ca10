"""Sampling completions, and choosing what to sample."""
