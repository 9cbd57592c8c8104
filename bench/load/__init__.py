"""Load over HTTP: clients, the servers under test, and their processes."""
