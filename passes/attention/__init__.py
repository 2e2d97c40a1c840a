"""Attention over a sequence that devices share."""
