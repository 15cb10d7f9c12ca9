"""What Atoll is measured beside, each started by its own command line on the same root file system."""
