"""The parts of `kvstore bench step`: a model, the ways to keep its KV, the growth of a step's time. Needs torch."""
