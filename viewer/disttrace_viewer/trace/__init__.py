"""The trace as values and columns: what every other part of the viewer speaks of."""
