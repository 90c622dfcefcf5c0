"""Credentials that are not among the options: how they are found and renewed.

boto_keys.py    AWS; google_tokens.py, azure_tokens.py: the other clouds
key_ring.py     renews them while the last ones are still valid
issuers.py      says why none were given
web_login.py    the login of a web server, from its url or from netrc

`StoreRoot.make_credentials_finder` decides which roots need them.
"""
