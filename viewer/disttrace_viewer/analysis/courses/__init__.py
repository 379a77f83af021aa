"""The order in which members of a group call, and where they are out of step."""
