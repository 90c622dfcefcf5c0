"""Fetches chunks from other engines, serves chunks to them, and finds out which engines they are.

opened.py       client and server together;    lookup.py        where addresses of members come from
                follows the members            roster.py        which of them are members; pure
client.py       asks peers                     server.py        answers peers, in a process of its own
peer.py         state of one peer, breaker
watch.py        when a request is late
transfer.py     one GET by libcurl             sends.py         which chunk is sent next
tls.py          certificates of both ends      server_process.py, engine_link.py, messages.py
protocol.py     paths, headers, facts                           the process, seen from the engine and from inside
"""
