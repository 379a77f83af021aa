"""What is around a program and tells of it: its launcher, and its project."""
