"""What comes out when an experiment is run? One run: servers, cells, tables, publication."""
