"""Drafts made on this machine, for speculative decoding without a second model to download.

`python -m cluster.weights.early_exit early-exit --layers N` makes one by hand; a profile's `models` entry with
`source: early_exit` has `python -m cluster.weights seed` make it.
"""
