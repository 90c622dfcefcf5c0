"""Proves that each sample of an epoch came once: digests of samples, and their comparison with an order."""
