"""From a trace to a report: the rules in order, consequences folded into causes."""
