"""`python -m cluster.weights` is `power-lever weights`."""

import sys

from cluster.weights.command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
