"""Load and quality benchmarks: `python -m bench.<name>`, each prints a table and takes `--json FILE`."""
