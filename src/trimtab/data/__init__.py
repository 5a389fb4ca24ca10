"""Rows in: prompts, demonstrations, their order, and the tensors made of them."""
