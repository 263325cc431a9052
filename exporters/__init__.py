"""All that publishes numbers and rules."""
