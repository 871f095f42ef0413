"""The routes: each is a protocol over the ports that it needs, shared by all who drive it."""
