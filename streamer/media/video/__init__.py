"""Clips out of long videos."""
