"""What was issued, issued again under other rules: without processes, or by a program."""
