"""Keeps the old place of `Order`, `Index` and `Skip` for programs that import them from here.

Nothing in this package uses it: `streamer` exports the three.
"""

from streamer.loader.options.arguments import Index, Order, Skip

__all__ = ["Index", "Order", "Skip"]
