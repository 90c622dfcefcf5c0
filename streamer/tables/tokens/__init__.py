"""The format "tokens": files of tokens, on which language models are trained.

`formats/registry.py` makes it, and `shards/outputs/tokens.py` writes such files and their index files.
"""
