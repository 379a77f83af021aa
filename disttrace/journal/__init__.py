"""The journal: the format both halves of disttrace know, and its writer."""
