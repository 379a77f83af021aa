"""Journals that still grow, read as they are written."""
