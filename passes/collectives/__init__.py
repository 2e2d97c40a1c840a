"""What the devices along an axis send each other for it."""
