"""The commands of the reading side: ``add_arguments(parser)`` and ``execute(args) -> int``."""

import os

# Polars' allocator (jemalloc): one arena for all threads needs less memory, and no more CPU.
os.environ.setdefault("_RJEM_MALLOC_CONF", "narenas:1")
