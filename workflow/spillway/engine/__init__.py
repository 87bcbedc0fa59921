"""Is the server up, and what is it? Start, prove ready, watch and stop one vLLM server; describe the host."""
