"""Keeps the place where `Order`, `Index` and `Skip` were before; import them from `streamer`."""

from streamer.loader.options.arguments import Index, Order, Skip

__all__ = ["Index", "Order", "Skip"]
