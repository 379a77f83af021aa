"""What several tests use: real processes, and proof that nothing stays behind."""
