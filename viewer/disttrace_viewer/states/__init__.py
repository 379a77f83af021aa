"""A process in a kilobyte: journals reduced where they lie, states merged anywhere."""
