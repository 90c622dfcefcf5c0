"""The torch face: data set, ring, workers, loader, device prefetcher. Import from `streamer`."""
