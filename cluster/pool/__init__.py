"""The GPU pool: one Serve deployment that knows what every tier's replicas and GPUs are doing right now.

Four sources feed it. Serve's controller knows which replicas run, start or cannot be placed. Ray knows which GPUs there
are and which are coming (`gpus.py`). Engine replicas report which chain entry they load or serve, what failed before
it, and their load. Ingress replicas report the requests that finished. `observe.py` joins them into the observation
that the router plans with.
"""
