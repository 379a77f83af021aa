"""What a call is: its operation, arguments, call site, and the number it is written under."""
