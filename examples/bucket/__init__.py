"""A bucket on this machine for the demos: an S3 server behind a slow link that counts, and images to put there."""
