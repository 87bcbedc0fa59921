"""What fits? Bytes of weights, KV cache and headroom, on each GPU and on the host, with and without a plan.

Read in this order. A model as bytes: `formats` (one matrix), `weights` (groups of equal matrices, whole and per GPU),
`kv_cache`, `shapes` (a model), `qwen3_and_mixtral`, `deepseek_v3`, `deepseek_v41` and `architectures` (a configuration
as a model), `checkpoint` (the same from headers), `unknown` (the same from stated numbers). A host: `budget` (all lines,
and where a start would fail), `placing` (the smallest plan, and what it costs). Where things come from: `config`, `hub`,
`sources`, `published`. What comes out: `rows`, `report`, `plot`, `command`.
"""
