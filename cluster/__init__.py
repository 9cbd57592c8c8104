"""The cluster below the application: profiles, weights, the GPU pool, scaling, deployment."""
