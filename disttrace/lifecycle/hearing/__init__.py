"""What the program itself may hear and ask while it is traced."""
