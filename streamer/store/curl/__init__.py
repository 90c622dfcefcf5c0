"""S3 and web servers read by libcurl.

store.py       the store: reads by libcurl, everything else by obstore
multi.py       many transfers on one event loop
handle.py      one transfer: its request and its answer
request.py     what it has in common with a peer's
listing.py     pages of lists
uploads.py     objects on web servers
access.py      addresses, headers, trusted certificates, keys and signatures of one bucket or host
addresses.py   which of a name's addresses a connection goes to; redirects that are kept

Nothing is imported here: pycurl is loaded when the first store of this kind is opened.
"""
