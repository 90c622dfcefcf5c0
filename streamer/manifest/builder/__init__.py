"""Builds manifests: lists, indexes, packs, publishes."""
