"""What trainers of other libraries get of a trace: thin, and nothing where tracing is off."""
