"""Finds the causes of waiting: causes, report, advice."""
