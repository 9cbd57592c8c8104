"""What the application runs on: profiles, weights, the GPU pool view."""
