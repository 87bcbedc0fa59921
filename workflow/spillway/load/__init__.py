"""How fast does the server answer? SSE framing, client, workloads and latency definitions."""
