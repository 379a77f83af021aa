"""From a trace to a report: the rules asked in order, consequences folded into causes."""
