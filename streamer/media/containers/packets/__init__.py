"""What the bytes of packets say without being decoded."""
