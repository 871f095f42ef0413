"""The page: receipts and the list of publications, rendered on the api-server. It reads, and can change nothing."""
