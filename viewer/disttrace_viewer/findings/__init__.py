"""Verdicts: what is wrong in a trace, who caused it and who only suffers from it."""
