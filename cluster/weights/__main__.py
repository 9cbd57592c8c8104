"""`python -m cluster.weights`: see `command.py`."""

import os
import sys

from cluster.weights.command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
