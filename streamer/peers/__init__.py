"""Fetches chunks from other engines, serves chunks to them, and finds out which engines they are.

group.py            server and client of one engine together; homes follow the members; missing manifests
by_job.py           the same for the engines of one job, whose ranks name the members
source.py           brings chunks from peers, and from the store where they are late
serving.py          fetches chunks for peers
client.py           asks peers; peer.py: the state of one of them, and when it is down; watch.py: when it is late
transfer.py         one GET by libcurl
server.py           answers peers, in a process of its own (`__main__.py`)
server_process.py   that process, as the engine sees it; messages.py: what the two say to each other
protocol.py         paths, headers, facts; tls.py: certificates of both ends
lookup.py           where addresses of members come from; roster.py: which of them are members
homes.py            which engine keeps a chunk, also where one job has all engines
"""
