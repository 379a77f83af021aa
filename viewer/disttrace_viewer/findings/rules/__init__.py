"""One rule per kind of fault; ``table`` holds them in their order of precedence."""
