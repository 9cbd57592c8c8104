"""What the application shows of itself: the catalogue of its series, who adds to them, dashboards and alerts."""
