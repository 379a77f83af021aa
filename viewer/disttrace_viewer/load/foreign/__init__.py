"""Evidence that others recorded, as records of the journal: a file per format."""
