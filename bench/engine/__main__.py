"""The process of one engine: see `host.py`.

A module of its own, as vLLM's child process imports the main module again unless it is a `__main__`: the engine core
needs none of what the host imports, and it takes seconds.
"""

from bench.engine.host import main

main()
