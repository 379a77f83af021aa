"""What companions tell each other of their processes: what of it, to whom, and what is believed."""
