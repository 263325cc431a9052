"""`kvstore tune`: which block size, for a GPU, a model's KV and the lengths of its requests."""
