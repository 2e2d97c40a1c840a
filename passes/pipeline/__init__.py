"""Microbatches, and stages of layers."""
