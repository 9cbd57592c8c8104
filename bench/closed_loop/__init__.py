"""A closed loop in virtual time: engines whose step times are known, texts whose predictable tokens are known."""
