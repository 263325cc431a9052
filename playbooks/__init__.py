"""All that concludes: runbooks that a machine can run."""
