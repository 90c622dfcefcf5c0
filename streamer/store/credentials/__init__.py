"""Finds and renews credentials that are not among the storage options.

Used by the stores of `store/`, and by `streamer doctor`. `StoreRoot.make_credentials_finder` (`store/root.py`) decides
which buckets need them.

boto_keys.py        keys of AWS
google_tokens.py    tokens of Google
azure_tokens.py     tokens of Azure
key_ring.py         renews them while the last ones are still valid
issuers.py          says why none were given
web_login.py        the login of a web server, from its url or from netrc
"""
