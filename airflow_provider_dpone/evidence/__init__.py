"""The durable trail of publications: what was meant, before it was done."""
