"""What `python -m bench.gpu` measures on one card, how long that takes, and what it has measured already."""
