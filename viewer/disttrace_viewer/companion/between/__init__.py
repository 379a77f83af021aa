"""What companions of several hosts tell each other while their job gets on, and what follows."""
