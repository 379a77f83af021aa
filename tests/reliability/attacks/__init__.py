"""Programs that look for us: each runs untraced and traced, and has to print and end the same.

A file is a theme and a public function an attack, whose docstring says what a program may count on.
What it prints is compared line by line, as are its exit code and what it leaves in its folder.
"""
