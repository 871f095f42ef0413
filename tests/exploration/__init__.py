"""Exhaustive exploration: the real route code against a small cluster, in every interleaving up to a bound."""
