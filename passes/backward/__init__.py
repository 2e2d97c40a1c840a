"""The backward pass, and what it reads of the forward pass."""
