"""Chunks on the SSD: what stays (policy), where it lies (folder, catalog), and that its bytes are right."""
