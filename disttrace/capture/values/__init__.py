"""Digests of what has to be equal in all ranks: never the values themselves."""
