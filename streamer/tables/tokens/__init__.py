"""The format "tokens" reads files of tokens, on which language models are trained.

`formats/registry.py` makes it for engine, recoders and workers, and `shards/outputs/tokens.py` writes such files and
their index files.
"""
