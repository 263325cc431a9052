"""What provokes and composes troubles, so that they can be rehearsed and scored."""
