"""How long a step takes on a device: priced kernels and collectives, in the order that the traces state.

`step.py` asks for a whole step. A device from a file (`device h100`) has measured times, where it has them; one of settings alone is a roofline with an
alpha-beta network. Where formulas come from: `kernels.py`, `prices.py` and `network.py`.
"""
