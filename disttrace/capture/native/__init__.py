"""Operations that C++ issues or finishes: kernels, hooks, functional collectives."""
