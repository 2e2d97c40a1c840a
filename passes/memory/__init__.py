"""What lives where, and until when."""
