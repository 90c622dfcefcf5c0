"""Answers requests for manifests: found in the folder, copied from a url, or built."""
