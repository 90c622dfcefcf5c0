"""What the ranks of a job agree on before they read."""
