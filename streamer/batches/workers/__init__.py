"""Worker processes and threads, and the process that they are forked from."""
