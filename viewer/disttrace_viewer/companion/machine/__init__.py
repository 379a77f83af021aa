"""What a host, its devices and its links say of themselves at a stall, without a program's help."""
