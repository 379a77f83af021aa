"""Journals as they lie in folders: finding files, reading records, naming what is wrong."""
