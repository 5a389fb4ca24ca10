"""Starting processes, and finding the others. Nothing else does."""
