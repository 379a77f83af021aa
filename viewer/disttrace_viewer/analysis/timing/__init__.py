"""Where the time goes: wait states, bandwidths, and the tables made of them."""
