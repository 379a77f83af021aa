"""Replacing attributes and code of torch, and putting exactly the same back."""
