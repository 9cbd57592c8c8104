"""Who may do what: keys and their scopes, and which web pages may ask."""
