"""The ingress's copy of the pool's observation, and its reports of finished runs."""
