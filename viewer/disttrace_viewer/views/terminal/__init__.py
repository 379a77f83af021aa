"""The terminal report: what to show is computed as values, and painted from nothing else."""
