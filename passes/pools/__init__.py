"""What pools of devices have of a model, and hand each other."""
