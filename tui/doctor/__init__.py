"""What can be seen from here, what not, and why."""
