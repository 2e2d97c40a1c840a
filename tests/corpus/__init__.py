"""Trace sets that are right, and the ways in which they are broken."""
