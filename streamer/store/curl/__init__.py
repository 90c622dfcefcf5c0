"""Reads S3 and web servers by libcurl.

`store/__init__.py` opens these stores. `peers/` sends its requests with `multi.py` and `request.py`.

store.py       the store: reads and lists by libcurl, writes buckets by obstore
multi.py       runs many transfers on one event loop
handle.py      one transfer to a store: its request and its answer
request.py     what such a transfer has in common with one to a peer
listing.py     queries and pages of lists
uploads.py     writes objects to web servers
access.py      addresses, headers, trusted certificates, keys and signatures of one bucket or host
addresses.py   which of a name's addresses a connection goes to, and redirects that are kept

Nothing is imported here: pycurl is loaded when the first store of this kind is opened.
"""
