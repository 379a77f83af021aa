"""Who waits for whom, as values and as a graph."""
