"""Early-exit drafts: draft models made on this machine from their target, without a download.

A draft has the target's first layers, and an output layer fitted on the target's own answers. Make one by hand with
`power-lever weights early-exit --layers N`, or name it in a profile's `models` (`source: early_exit`), and `seed`
makes it.
"""
