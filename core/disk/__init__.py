"""Writing that is on the disk when it says so: files and lines, whole or not there."""
