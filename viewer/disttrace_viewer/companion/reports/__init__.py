"""What hosts send each other of their processes: in one public form, checked where it arrives."""
