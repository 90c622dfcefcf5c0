"""Makes samples from their ordinals."""
