"""S3 and web servers read by libcurl.

store.py       the store: reads by libcurl, everything else by obstore
multi.py       many transfers on one event loop
handle.py      one transfer: its request and its answer
listing.py     pages of lists; targets.py: redirects that are kept; names.py: addresses of a host
access.py      addresses, headers, trusted certificates and keys of one bucket or host
signature.py   AWS Signature Version 4

Nothing is imported here: pycurl is loaded when the first store of this kind is opened.
"""
