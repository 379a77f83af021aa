"""What every instrumentation shares: the state of the capture, and the shapes of a wrapper."""
