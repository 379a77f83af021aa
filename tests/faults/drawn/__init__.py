"""Programs drawn from a seed, one fault put into each, and a truth that follows from the fault."""
