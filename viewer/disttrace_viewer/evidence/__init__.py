"""What the rules look at: each class knows what those before it know, and answers from that."""
