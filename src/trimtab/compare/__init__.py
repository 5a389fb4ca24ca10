"""Comparing arms that differ in one thing: same prompts, order, reward, evaluation and budget; a verdict with its error."""
