"""What the layers of the proof share: the oracle of invariants, and the report."""
