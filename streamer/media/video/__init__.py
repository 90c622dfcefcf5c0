"""Clips out of long films."""
