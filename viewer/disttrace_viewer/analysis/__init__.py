"""What the operations of a trace mean together: exchanges, waits, ends, delays, with evidence."""
