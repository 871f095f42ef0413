"""What must work on any real cluster: the local one always, and the Docker profile where there is an engine."""
