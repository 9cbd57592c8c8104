"""A closed loop in virtual time: machines whose step times are known, texts whose predictable tokens are known, policies."""
