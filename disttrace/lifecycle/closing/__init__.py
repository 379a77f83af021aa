"""What is said at the end of a job."""
