"""Looks at a job that hangs without disttrace: its processes, their stacks, two moments apart."""
