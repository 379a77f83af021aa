"""What of torch's Python surface is wrapped: a file per class or family of functions."""
