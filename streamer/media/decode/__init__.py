"""Videos and audio: packets to frames and samples, by PyAV. Only modules of this folder import it."""
