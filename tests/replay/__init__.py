"""Replays traces by the issue rules of ASTRA-sim, to see that every node of every rank runs."""
