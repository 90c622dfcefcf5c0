"""Windows out of long recordings."""
