"""What a traced process does beside the program: heartbeats, clock anchors, polling, stacks."""
