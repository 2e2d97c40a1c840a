"""Numpy arrays, called by what they hold. Their shapes stand in brackets where they are made."""

import numpy as np

Bools = np.ndarray
Ints = np.ndarray
Floats = np.ndarray
