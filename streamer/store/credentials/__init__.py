"""Credentials that options do not have: where they are looked for, and how they are renewed.

rings.py        which roots need them
boto_keys.py    AWS; google_tokens.py, azure_tokens.py: the other clouds
key_ring.py     renews them while the last ones serve
metadata.py     what a metadata server answers to the clouds' own libraries
"""
