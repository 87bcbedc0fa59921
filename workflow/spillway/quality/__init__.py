"""Does it still answer as well? Tasks, extraction, paired statistics, token-level agreement of two endpoints."""
