"""Where bytes go: the writer, checkpoints, the journal, the run directory."""
