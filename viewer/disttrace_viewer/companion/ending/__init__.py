"""What is worked out at the end of a job, for whoever ends last."""
