"""Delivery to a collector: backends, retries, what was sent and what was dropped."""
