"""Kill what writes the streams, and count what their readers lose.

readers   what a client of each route gets, and how it compares with an undisturbed answer
faults    what happens to the cluster
sockets   shuts another process's connections down
run       the streams, and the faults among them
"""
