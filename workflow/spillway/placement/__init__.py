"""Which experts live in host memory, and how stock vLLM is made to put them there and to prove it.

Read in this order: `plan` (what goes where), `choose` (how a plan is made), `layout` (one tensor, two memories: the
arithmetic), `pages` (the same through the CUDA driver), `routed_experts` and `staging` (the vLLM layer), `proof` (what
each rank writes and the harness checks).

Where residency follows traffic: `counter` (reads, counted in the graphs), `follow` (which experts should change places: pure
functions; benchmarks/regret.py simulates what that costs and saves), `exchange` (slots and mappings), `swap` (carrying it out
between steps), `journal` (what moved).

`plugin.register` is the entry point that vLLM calls; nothing here imports vLLM, torch or CUDA before that.
"""
