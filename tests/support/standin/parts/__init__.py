"""A process group that behaves like NCCL, on CPU tensors, over sockets between real processes.

A call enqueues and returns at once; a thread per stream executes, as soon as all members are there
and what was before it on its streams is done. A wait orders streams. Every operation is an entry of
a flight recorder of the real shape, which is asked like torch's own. What reads a tensor on the
host (``item`` and its kin), a barrier, and the destruction of a group wait for the device.

Compiled as a package of torch's (see ``sitecustomize``). What a program may choose are variables:
``semantics.py`` has them all.
"""
