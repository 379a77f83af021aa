"""What C++ issues on a torch without native hooks: by kernels, and DDP by its relays."""
