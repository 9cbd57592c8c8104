"""HTTP: routes, bodies, server-sent events, errors."""
