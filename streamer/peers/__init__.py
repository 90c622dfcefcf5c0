"""Lets engines share their caches: fetches chunks from other engines, serves chunks to them, and finds these engines.

The service gives an engine its peers (`service/lifecycle.py` by the configuration, `service/long_requests.py` for the
ranks of a job). The members are the engines that share their caches; peers are the other members.

group.py            server and client of one engine together, and which members there are
by_job.py           the same for the engines of one job, whose ranks name the members
homes.py            which member keeps a chunk
source.py           brings chunks from peers, or from the store if they are late or have none
client.py           asks peers for chunks and other things
peer.py             the state of one peer, and when it counts as down
watch.py            when a request to a peer is late
transfer.py         one GET by libcurl
serving.py          decides in the engine what peers get, and fetches chunks for them
server_process.py   starts the process that answers peers, and answers its questions
server.py           answers peers in that process (`__main__.py`)
messages.py         messages between the engine and that process
protocol.py         what peers say to each other over HTTP
tls.py              certificates of both ends
lookup.py           addresses of members, as the configuration names them
roster.py           which addresses are members
"""
