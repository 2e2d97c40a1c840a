"""An attack on all of stagec: whatever comes in ends in one clear diagnostic or in what was asked for.

`python -m tests.attack --seed 7 --budget 120` makes random cases of every kind; a case is a kind and a number, so that
what fails can be run again, and it is made smaller before it is shown.
"""
