"""Begins and ends on their way into the journal: numbers, interned definitions, operations."""
