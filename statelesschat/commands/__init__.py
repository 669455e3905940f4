"""The commands of the command line, one module each; what they run is imported when they do."""
