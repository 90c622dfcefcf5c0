"""Answers requests for manifests: finds them in the cache folder, copies them from a url, or builds them.

The engine uses `manifests.py`, whose parts the other modules are.
"""
