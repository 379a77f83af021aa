"""The command of DISTTRACE_ON_STALL, and what it gets."""
