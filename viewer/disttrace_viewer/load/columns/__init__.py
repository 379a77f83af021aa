"""Segments as columns, and begins joined with what became of them."""
