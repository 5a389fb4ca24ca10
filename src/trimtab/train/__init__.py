"""The loop, and how a batch becomes updates."""
