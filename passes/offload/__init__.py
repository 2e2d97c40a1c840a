"""What the host keeps."""
