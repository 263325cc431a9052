"""All that a person sees: kvtop and its command line."""
