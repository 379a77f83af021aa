"""What profilers kept of each call, as journals: torch.profiler (Kineto) and NCCL Inspector."""
