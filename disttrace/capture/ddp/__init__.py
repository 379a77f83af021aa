"""What DDP issues from C++ on a torch without native hooks."""
