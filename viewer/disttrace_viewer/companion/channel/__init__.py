"""How companions of several hosts talk: messages, conversations, who meets where, and who leads."""
