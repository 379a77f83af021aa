"""One module per way of showing a trace."""
