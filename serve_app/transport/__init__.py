"""The way of a request to an engine replica, and of its tokens back."""
