"""See the folder's files."""
