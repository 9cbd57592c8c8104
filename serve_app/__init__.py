"""The Ray Serve application: ingress, SSE events, engine deployments."""
