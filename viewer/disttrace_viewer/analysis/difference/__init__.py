"""Two runs compared, as sequences of numbers: which calls, in which order, how large, how long."""
