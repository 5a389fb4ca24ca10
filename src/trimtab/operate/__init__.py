"""What is done to a run from above."""
