"""Views of the terminal as coloured text."""
