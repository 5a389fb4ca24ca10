"""Torch only, no model: log-probs of tokens, and sampling."""
