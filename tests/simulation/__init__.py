"""A simulated cluster behind the route's ports: every call can fail in every way, in virtual time."""
