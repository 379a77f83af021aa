"""What is over, from tables of all operations: what only these tell is put before the judge."""
