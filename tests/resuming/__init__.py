"""The IR after any pass is the whole program: cut there, print, parse, go on, and the traces are the same."""
