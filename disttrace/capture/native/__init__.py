"""Operations that C++ issues or finishes: hooks, kernels, functional collectives."""
