"""The network between companions: that on the host of the store serves those of other hosts."""
