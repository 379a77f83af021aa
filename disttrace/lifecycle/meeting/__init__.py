"""Where processes of one user on one host leave word for each other, and which these are."""
