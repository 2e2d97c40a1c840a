"""What things cost: time and memory of the compiler and its tools."""
