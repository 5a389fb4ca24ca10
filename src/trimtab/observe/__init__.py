"""What people and monitors see of a run: the live view, the report, the pictures."""
