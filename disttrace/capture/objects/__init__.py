"""Numbers for groups, stores and works, by weak references: nothing of torch is owned."""
