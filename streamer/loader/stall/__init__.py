"""Why the GPU waits: causes, report, advice."""
