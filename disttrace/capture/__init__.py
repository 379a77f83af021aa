"""Capture: the only part of the recorder that knows torch, which importing this does not import."""
