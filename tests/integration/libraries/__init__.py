"""What installed libraries do with our files and plans: each is asked itself, without a server."""
