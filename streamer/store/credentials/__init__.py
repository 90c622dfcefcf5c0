"""Credentials that are not among the options: how they are found and renewed.

rings.py        which roots need them
boto_keys.py    AWS; google_tokens.py, azure_tokens.py: the other clouds
key_ring.py     renews them while the last ones are still valid
metadata.py     what a metadata server answers to the clouds' own libraries
"""
