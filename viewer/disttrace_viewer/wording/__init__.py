"""Values as English: the only place that decides how a thing is called."""
