"""Journals of many processes as one trace: jobs, clocks, groups, store servers."""
