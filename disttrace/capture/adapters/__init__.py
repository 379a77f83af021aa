"""Adapters: communication of other libraries, recorded as its own program would declare it.

None of these libraries is imported; each is patched when the program imports it.
"""
