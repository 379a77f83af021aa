"""torchrun: its agent, and the workers that it starts."""
