"""What is said of a job; the command of DISTTRACE_ON_STALL, and what it gets."""
