"""The sealed artifacts: rows on their way to replicas that are loaded one by one."""
