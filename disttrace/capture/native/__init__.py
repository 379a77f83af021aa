"""Operations that C++ issues or finishes: kernels, hooks, store traffic."""
