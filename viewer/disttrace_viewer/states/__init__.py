"""A process in a kilobyte or two: journals reduced where they lie, states merged anywhere."""
