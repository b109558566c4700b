"""What the daemon is measured by: its loop in memory, and real flows while it comes and goes."""
