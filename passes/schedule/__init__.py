"""Tasks: their order, their streams, and what each waits for."""
