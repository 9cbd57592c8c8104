"""What requests took, by whom: the request log, summed up."""
