"""Timelines for a browser and for Perfetto."""
