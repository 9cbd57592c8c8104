"""Files for clusters, and the hashes of what they install."""
