"""Which part of each tensor a device has."""
