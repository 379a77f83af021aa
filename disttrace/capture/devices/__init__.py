"""When devices have finished what was issued: what runs there is asked of those who know."""
