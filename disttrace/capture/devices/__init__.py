"""When devices have finished what was issued: read from its runtime or a recorder."""
