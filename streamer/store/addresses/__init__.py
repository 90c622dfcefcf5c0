"""Takes urls apart and compares them: schemes, buckets and keys, names of hosts, globs and braces. No I/O.

Used by the stores of `store/`, and by all rooms that handle urls: `engine/`, `fetch/`, `indexing/`, `service/`,
`shards/`, `tools/`.

urls.py       scheme, root and key of a url
hosts.py      whether names and addresses are those of a cloud, and which redirects are followed
patterns.py   what to list for a url with globs or braces, and which objects to keep
globs.py      matches urls with globs
"""
