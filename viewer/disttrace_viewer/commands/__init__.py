"""The commands of the reading side: ``add_arguments(parser)`` and ``execute(args) -> int``."""
