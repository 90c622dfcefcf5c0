"""The interface to torch: dataset, ring, workers, loader, device prefetcher. Import from `streamer`."""
