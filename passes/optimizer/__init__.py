"""Gradients, the update, and where what it reads is stored."""
