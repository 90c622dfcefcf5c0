"""Keeps chunks on the SSD: which ones stay (policy), their files (folder, catalog), and their integrity."""
