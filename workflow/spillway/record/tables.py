"""The column dictionary: every table that Spillway records, each column with its type, unit and meaning.

A column's unit is the end of its name (`_s` seconds, `_bytes`, `_tokens`, `_tok_per_s`, `_fraction` of 1). `data/README.md`
is generated from this file.
"""

from collections.abc import Collection
from dataclasses import dataclass

import pyarrow as pa


@dataclass(frozen=True)
class Column:
    """One column: its Arrow type, what it means, and whether a row may lack it (a lacking value is null, never 0)."""

    type: pa.DataType
    meaning: str
    nullable: bool = False
    optional: bool = False
    """A table has the column only if one of its rows does; then every row must."""


TEXT, INTEGER, REAL, FLAG = pa.string(), pa.int64(), pa.float64(), pa.bool_()

ARM = Column(TEXT, "which of the experiment's ways to serve the model; only where it compares several", optional=True)
COLD_SHARE = Column(
    REAL, "picks that the synthetic routing gave the unpopular experts; only where it was in force", optional=True
)

START = Column(
    INTEGER,
    "which launch of a server in the run measured the row, from 0; only in runs that were interrupted and continued, where a "
    "boot may have several",
    optional=True,
)

# Every measured table starts with these: which run, which start of the server, which arm and cell of the experiment.
KEYS = {
    "run": Column(TEXT, "run id: start time in UTC and a random suffix"),
    "boot": Column(INTEGER, "which start of the server within the run, from 0"),
    "start": START,
    "arm": ARM,
    "cell": Column(TEXT, "name of the cell: one workload at one setting"),
}

BOOTS = {
    "run": KEYS["run"],
    "boot": KEYS["boot"],
    "start": START,
    "arm": ARM,
    "startup_s": Column(REAL, "from launch to ready: health, one long prefill, one decode at full batch"),
    "health_s": Column(REAL, "from launch to the first healthy answer"),
    "process_memory_bytes": Column(INTEGER, "memory of the server's processes when ready: proportional set size (PSS)"),
    "weights_bytes": Column(INTEGER, "bytes of weights, as the engine's log says", nullable=True),
    "kv_cache_tokens": Column(INTEGER, "tokens that the KV cache holds, as the engine's log says", nullable=True),
}

ARMS = {
    "run": KEYS["run"],
    "boot": KEYS["boot"],
    "arm": Column(TEXT, "which of the experiment's ways to serve the model; `served` where there is one only"),
    "outcome": Column(TEXT, "served: started, proved and gave every cell; failed: see `message`; the other arms went on"),
    "message": Column(TEXT, "why it failed: the first lines of what was found; null if served", nullable=True),
    "model": Column(TEXT, "file in experiments/models/"),
    "arguments": Column(TEXT, "engine arguments that differ from the host's, as JSON"),
    "plan_sha256": Column(TEXT, "hash of the plan; null: all experts on the GPUs", nullable=True),
    "plan_choice": Column(TEXT, "how the plan was made, as JSON; null without one", nullable=True),
    "host_experts": Column(INTEGER, "routed experts on the host, all layers; null without a plan", nullable=True),
    "host_bytes": Column(INTEGER, "bytes of experts on the host, all ranks, by the proof; null without one", nullable=True),
    "gpu_bytes": Column(INTEGER, "bytes of the placed layers' experts on the GPUs, by the proof", nullable=True),
    "host_read_bytes_per_s": Column(REAL, "slowest rank's kernels reading host pages, by the proof", nullable=True),
    "host_copy_bytes_per_s": Column(REAL, "slowest rank's copies from the host, by the proof", nullable=True),
    "staged_from_rows": Column(INTEGER, "steps of at least as many rows are staged; null: never", nullable=True),
    "backend": Column(TEXT, "kernels of the experts, by the proof; null without one", nullable=True),
    "routing": Column(TEXT, "synthetic routing in force at the start; null: the model's own", nullable=True),
    "startup_s": Column(REAL, "from launch to ready; null if it never was", nullable=True),
}

RESIDENCY = {
    **KEYS,
    "t_s": Column(REAL, "cell's clock at the end of the second or so that the row is about"),
    "reads": Column(INTEGER, "reads of an expert by a decode step in that time, all placed layers"),
    "host_share_fraction": Column(REAL, "of these, on the host; null where there was none", nullable=True),
    "swaps": Column(INTEGER, "pairs of experts that changed places in that time"),
    "failed_swaps": Column(INTEGER, "swaps given up in that time; following stops after one"),
    "moved_bytes": Column(INTEGER, "bytes that these swaps copied over the link, one rank"),
    "paused_s": Column(REAL, "time for which mapping their pages held up the engine"),
}

SHIFTS = {
    **KEYS,
    "shift": Column(INTEGER, "its number within the cell, from 0; one counts if requests go on until the next"),
    "at_s": Column(REAL, "cell's clock when other experts became unpopular: a multiple of the period in Unix time"),
    "matched_tpot_s": Column(REAL, "median TPOT of the same plan, whose experts stay, under the same routing without shifts"),
    "recovered_s": Column(
        REAL,
        "from the shift to the first token of the first of three requests in a row whose TPOT is at most 1.1 times that; null "
        "if none was before the next shift",
        nullable=True,
    ),
}

STEP_TIMES = {
    **KEYS,
    "phase": Column(
        TEXT,
        "all; experts move: while swaps were made; plan does not match: while another set of experts was unpopular than the "
        "one that the plan is for",
    ),
    "steps": Column(INTEGER, "gaps between two chunks with output of one answer of a measured request, in that phase"),
    "median_s": Column(REAL, "their median"),
    "p99_s": Column(REAL, "their 99th percentile"),
}

LINK_LINE = {
    "run": KEYS["run"],
    "arm": Column(TEXT, "arm with a plan"),
    "cell": KEYS["cell"],
    "step_host_bytes": Column(REAL, "bytes of host experts that a decode step read, as counted in an arm with this plan"),
    "host_read_bytes_per_s": Column(
        REAL, "rate of reading host memory in place, of the proofs of the arm; median of its boots"
    ),
    "in_vram_tpot_s": Column(REAL, "median TPOT of the arm with everything in GPU memory"),
    "line_s": Column(REAL, "that, and the time which the rate takes for the bytes"),
    "tpot_s": Column(REAL, "median TPOT of the arm"),
    "over_line_ratio": Column(REAL, "its TPOT over the line"),
}

MEMORY = {
    "run": KEYS["run"],
    "boot": KEYS["boot"],
    "start": START,
    "arm": ARM,
    "place": Column(TEXT, "where the bytes lie: checkpoint, host, or gpu and its number"),
    "component": Column(TEXT, "what the bytes are: a kind of weights, the KV cache, the whole process"),
    "predicted_bytes": Column(INTEGER, "what the memory model says; null where it predicts nothing", nullable=True),
    "predicted_from": Column(TEXT, "source of the prediction: computed, or what it was taken from", nullable=True),
    "measured_bytes": Column(INTEGER, "what was found; null where nothing reports it", nullable=True),
    "measured_from": Column(TEXT, "what reported it: checkpoint header, engine log, process memory", nullable=True),
}

CELLS = {
    **KEYS,
    "cold_share_fraction": COLD_SHARE,
    "kind": Column(TEXT, "kind of the workload, see spec/workload.py"),
    "streams": Column(INTEGER, "streams at once: streams, users or contexts; null for arrivals", nullable=True),
    "prompt_tokens": Column(INTEGER, "length of every prompt, as the workload asks; null if they vary", nullable=True),
    "context_tokens": Column(INTEGER, "length of the longest prompt: the same, or the limit of a growing context"),
    "output_tokens": Column(INTEGER, "length of every answer, or the limit of one that is drawn"),
    "rate_per_s": Column(REAL, "arrivals per second that the workload asks for (open loop)", nullable=True),
    "seed": Column(INTEGER, "of lengths, pauses and arrivals"),
    "workload": Column(TEXT, "the whole workload as JSON"),
    "api": Column(TEXT, "completions: prompts of token ids; chat: prompts of words"),
    "outcome": Column(TEXT, "measured; marked: see `marks`; failed: the server died or no measured request succeeded"),
    "marks": Column(TEXT, "each reason not to take the cell as it is, as `name: reason`, joined by `; `, or none"),
    "started_at": Column(TEXT, "wall clock in UTC when the cell's clock read 0; never use it for a latency"),
    "duration_s": Column(REAL, "from the cell's start to the end of its last request"),
    "window_start_s": Column(REAL, "first measured request sent; null if none was", nullable=True),
    "window_end_s": Column(REAL, "last measured request ended; null if none was sent", nullable=True),
    "requests_planned": Column(INTEGER, "measured requests that the workload asks for"),
    "requests_ok": Column(INTEGER, "measured requests answered whole"),
    **{
        f"requests_{error}": Column(INTEGER, f"measured requests that failed: {error}, see load/client.py")
        for error in (
            "connect",
            "timeout",
            "transport",
            "truncated",
            "in_band_error",
            "empty",
            "not_sse",
            "http_status",
            "not_sent",
        )
    },
    "unmeasured_failed": Column(INTEGER, "warm-up and cool-down requests that failed"),
    "shared_prompt_tokens": Column(INTEGER, "prompt tokens, over all requests sent, that a cache may have answered"),
    "sent_prompt_tokens": Column(INTEGER, "prompt tokens over all requests sent"),
    "cached_prompt_tokens": Column(
        INTEGER, "prompt tokens answered from cache by the requests' own usage; null if any did not say", nullable=True
    ),
    "prefix_hit_tokens": Column(INTEGER, "rise of the server's prefix hit counter; null if it has none", nullable=True),
    "prefix_query_tokens": Column(INTEGER, "rise of its prefix query counter; null if it has none", nullable=True),
    "preemptions": Column(INTEGER, "rise of its preemption counter; null if it has none", nullable=True),
    "decode_steps": Column(
        INTEGER, "steps of at most 64 rows, warm-up among them, of an arm that counts; else null", nullable=True, optional=True
    ),
    "host_reads": Column(
        INTEGER, "host experts that these steps read, each once a step, over all layers", nullable=True, optional=True
    ),
    "host_read_bytes": Column(INTEGER, "their bytes on one rank", nullable=True, optional=True),
    "client_processes": Column(INTEGER, "processes that sent the requests"),
    "client_delay_p50_s": Column(REAL, "median receive delay, against events that carry their send time", nullable=True),
    "client_delay_p99_s": Column(REAL, "99th percentile of the same", nullable=True),
    "client_delay_bound_s": Column(REAL, "what the 99th percentile must not pass"),
    "loop_delay_p50_s": Column(REAL, "median lateness of the client's event loop during the cell", nullable=True),
    "loop_delay_p99_s": Column(REAL, "99th percentile of the same", nullable=True),
    "loop_delay_max_s": Column(REAL, "largest of the same", nullable=True),
}

REQUESTS = {
    **KEYS,
    "cold_share_fraction": COLD_SHARE,
    "request": Column(INTEGER, "number of the request in the cell, in the order of sending"),
    "stream": Column(INTEGER, "stream that sent it, from 0; null: sent before all streams, or by the clock", nullable=True),
    "streams": Column(INTEGER, "streams that the cell keeps at work at once; null for arrivals", nullable=True),
    "turn": Column(INTEGER, "number of the request in its stream, from 0"),
    "phase": Column(TEXT, "warmup, measured or cooldown: only `measured` is"),
    "outcome": Column(TEXT, "ok, failed, or cancelled (cool-down only)"),
    "error": Column(TEXT, "class of the failure, see load/client.py", nullable=True),
    "message": Column(TEXT, "what the server or the connection said, cut to 500 characters", nullable=True),
    "http_status": Column(INTEGER, "null if no answer began", nullable=True),
    "retried": Column(FLAG, "sent twice, because a kept connection had been closed before any answer"),
    "scheduled_s": Column(REAL, "when it was due, since the cell's start; null if that was never decided", nullable=True),
    "sent_s": Column(REAL, "as its first byte went to the socket", nullable=True),
    "first_byte_s": Column(REAL, "head of the answer", nullable=True),
    "first_output_s": Column(REAL, "first chunk with content, reasoning or a tool call", nullable=True),
    "first_answer_s": Column(REAL, "first chunk with content or a tool call", nullable=True),
    "last_output_s": Column(REAL, "last chunk with output", nullable=True),
    "end_s": Column(REAL, "the request was over, well or not", nullable=True),
    "ttft_s": Column(REAL, "load/latency.py; null unless ok, as are the four below", nullable=True),
    "ttfa_s": Column(REAL, "time to the first answer chunk, past any reasoning", nullable=True),
    "tpot_s": Column(REAL, "time per output token; null also if the tokens of a chunk are not known", nullable=True),
    "rate_tok_per_s": Column(REAL, "speed of the stream: 1 / TPOT", nullable=True),
    "e2e_s": Column(REAL, "from sending to the last output chunk", nullable=True),
    "response_s": Column(REAL, "from schedule to the last output chunk", nullable=True),
    "asked_prompt_tokens": Column(INTEGER, "tokens put into the prompt"),
    "asked_output_tokens": Column(INTEGER, "tokens asked for"),
    "shared_tokens": Column(INTEGER, "leading prompt tokens that an earlier request of the cell had sent"),
    "prompt_tokens": Column(INTEGER, "by the server's usage; null if it gave none, as are the two below", nullable=True),
    "cached_tokens": Column(INTEGER, "prompt tokens answered from cache", nullable=True),
    "output_tokens": Column(INTEGER, "output tokens", nullable=True),
    "output_tokens_source": Column(TEXT, "continuous_usage (on every chunk), final_usage, or none"),
    "first_chunk_tokens": Column(INTEGER, "tokens up to and with the first output chunk", nullable=True),
    "last_chunk_tokens": Column(INTEGER, "tokens up to and with the last output chunk", nullable=True),
    "output_chunks": Column(INTEGER, "chunks with output"),
    "content_chars": Column(INTEGER, "characters of content"),
    "reasoning_chars": Column(INTEGER, "characters of reasoning"),
    "tool_call_chars": Column(INTEGER, "characters of tool calls: names and arguments"),
    "finish_reason": Column(TEXT, "as the server said it", nullable=True),
    "received_bytes": Column(INTEGER, "bytes of the body"),
}

CHUNKS = {
    **KEYS,
    "request": Column(INTEGER, "number of the request in the cell"),
    "chunk": Column(INTEGER, "number of the event in the request, [DONE] left out"),
    "at_s": Column(REAL, "when the read that completed it arrived, since the cell's start"),
    "kind": Column(TEXT, "content, reasoning, tool_call, or none: a role, a finish reason or a usage alone"),
    "chars": Column(INTEGER, "characters of its text"),
    "tokens": Column(INTEGER, "output tokens up to and with it, if it says so", nullable=True),
}

SERVER_METRICS = {
    **KEYS,
    "at_s": Column(REAL, "since the cell's start; null in a column below means that the server does not expose it"),
    "engine": Column(TEXT, "data-parallel rank"),
    "running": Column(INTEGER, "requests being computed", nullable=True),
    "waiting": Column(INTEGER, "requests in its queue", nullable=True),
    "kv_cache_usage_fraction": Column(REAL, "of the KV cache's blocks, in use", nullable=True),
    "preemptions": Column(INTEGER, "since its start, as are those below", nullable=True),
    "prefix_query_tokens": Column(INTEGER, "prompt tokens looked up in the prefix cache", nullable=True),
    "prefix_hit_tokens": Column(INTEGER, "prompt tokens found there", nullable=True),
    "prompt_tokens": Column(INTEGER, "prompt tokens taken in", nullable=True),
    "output_tokens": Column(INTEGER, "tokens written", nullable=True),
}

CLIENT_METRICS = {
    **KEYS,
    "at_s": Column(REAL, "since the cell's start"),
    "process": Column(INTEGER, "process of the client, from 0"),
    "cpu_fraction": Column(REAL, "of one core, over the last second"),
    "memory_bytes": Column(INTEGER, "resident"),
    "loop_delay_s": Column(REAL, "latest that the event loop came to a tick in the last second"),
}

GPU_METRICS = {
    **KEYS,
    "at_s": Column(REAL, "since the cell's start; null in a column below means that the driver does not say"),
    "gpu": Column(INTEGER, "index by NVML"),
    "memory_used_bytes": Column(INTEGER, "by all processes", nullable=True),
    "pcie_received_bytes_per_s": Column(INTEGER, "host to GPU, over 20 ms", nullable=True),
    "pcie_sent_bytes_per_s": Column(INTEGER, "GPU to host, over 20 ms", nullable=True),
    "sm_clock_mhz": Column(INTEGER, "clock of the multiprocessors", nullable=True),
    "memory_clock_mhz": Column(INTEGER, "clock of the memory", nullable=True),
    "power_w": Column(REAL, "drawn by the board", nullable=True),
    "busy_fraction": Column(REAL, "of the last sample period, with a kernel running", nullable=True),
    "temperature_c": Column(INTEGER, "of the GPU", nullable=True),
}

# Computed, not measured by a server: these two have no run, boot or cell.
_SOURCE = Column(TEXT, "published figures, trace (public sessions) or logs (one's own)")
_LEVEL = Column(REAL, "largest share of time in overload that is accepted")
_CASE = Column(TEXT, "whose developers, server and prices: published, or logs")
_MORE_THAN_K = "with more streams busy than the server holds at the floor"

ACTIVITY = {
    "activity_profile": {
        "source": _SOURCE,
        "rule": Column(TEXT, "what counts as working time"),
        "developers": Column(INTEGER, "developers whose logs were read", nullable=True),
        "days": Column(INTEGER, "days that count, over all developers; null where the source has no calendar", nullable=True),
        "window_s": Column(REAL, "working time under the rule"),
        "stream_s": Column(REAL, "time in which streams were busy within it; each stream counts"),
        "union_s": Column(REAL, "time in which at least one stream was busy", nullable=True),
        "q_fraction": Column(REAL, "stream time over working time: mean busy streams of one developer"),
        "q_low_fraction": Column(REAL, "lower end of its 95 % interval", nullable=True),
        "q_high_fraction": Column(REAL, "upper end of its 95 % interval", nullable=True),
        "interval": Column(TEXT, "how the interval was made", nullable=True),
        "q_session_median_fraction": Column(REAL, "the same share, median over sessions", nullable=True),
        "week_fraction": Column(REAL, "stream time over all 168 hours of a week", nullable=True),
        "calls": Column(INTEGER, "responses of the model, each counted once", nullable=True),
        "sessions": Column(INTEGER, "conversations", nullable=True),
        "context_per_output": Column(REAL, "tokens of context sent for each token written, over all calls", nullable=True),
        "context_per_output_session_median": Column(REAL, "the same, median over sessions", nullable=True),
        "context_per_estimated_output": Column(
            REAL, "the same over all calls, with output tokens estimated from the text where that gives more", nullable=True
        ),
        "untimed_fraction": Column(REAL, "of the calls, without a usable time: their time is missing", nullable=True),
        "under_recorded_fraction": Column(REAL, "of the calls, with far more text than recorded tokens", nullable=True),
    },
    "activity_concurrency": {
        "source": _SOURCE,
        "streams": Column(INTEGER, "streams of one developer busy at once; of one session in the trace"),
        "time_s": Column(REAL, "time with exactly so many"),
        "fraction": Column(REAL, "of the time with at least one"),
    },
    "activity_hours": {
        "source": _SOURCE,
        "hour": Column(INTEGER, "local hour of the day"),
        "stream_s": Column(REAL, "time in which streams were busy; each stream counts"),
        "union_s": Column(REAL, "time in which at least one stream was busy"),
        "calls": Column(INTEGER, "responses that start in it"),
        "context_tokens": Column(INTEGER, "context sent with them"),
        "output_tokens": Column(INTEGER, "tokens written in them, as recorded"),
    },
    "activity_days": {
        "source": _SOURCE,
        "developer": Column(INTEGER, "number of the developer, from 0"),
        "day": Column(TEXT, "local date"),
        "window_s": Column(REAL, "working time under the rule"),
        "stream_s": Column(REAL, "time in which streams were busy within it; each stream counts"),
        "union_s": Column(REAL, "time in which at least one stream was busy"),
        "calls": Column(INTEGER, "responses that start on it, within the window or not"),
        "context_tokens": Column(INTEGER, "context sent with them"),
        "output_tokens": Column(INTEGER, "tokens written in them, as recorded"),
    },
    "activity_turns": {
        "source": _SOURCE,
        "quantile": Column(REAL, "share of the calls that do not exceed the values"),
        "duration_s": Column(REAL, "time of the response"),
        "context_tokens": Column(REAL, "whole context sent"),
        "output_tokens": Column(REAL, "tokens written, as recorded"),
    },
    "activity_flags": {
        "source": _SOURCE,
        "flag": Column(TEXT, "what may be wrong with a log"),
        "count": Column(INTEGER, "how often it was found"),
        "meaning": Column(TEXT, "what the count counts"),
    },
}

SEATS = {
    "seats_published": {
        "figure": Column(TEXT, "id in published/figures.csv"),
        "published": Column(REAL, "as stated, in the unit of figures.csv"),
        "recomputed": Column(REAL, "from the published inputs, in the same unit"),
        "reading": Column(TEXT, "the formula"),
        "agrees": Column(FLAG, "rounded to the stated digits, the two are equal"),
        "q_low_fraction": Column(REAL, "lowest q that gives the same number of seats; null for other figures", nullable=True),
        "q_high_fraction": Column(REAL, "highest q that gives the same number of seats", nullable=True),
    },
    "seats_overload": {
        "case": _CASE,
        "model": Column(TEXT, "assumption about demand"),
        "developers": Column(INTEGER, "on one server"),
        "clock_fraction": Column(REAL, f"of clock time {_MORE_THAN_K}"),
        "experienced_fraction": Column(REAL, f"of generated stream time {_MORE_THAN_K}"),
    },
    "seats_models": {
        "case": _CASE,
        "model": Column(TEXT, "assumption about demand"),
        "criterion": Column(TEXT, "what the share is of: clock time, experienced (stream) time, tokens, attempts"),
        "level_fraction": _LEVEL,
        "seats": Column(INTEGER, "most developers on one server"),
        "reference_developers": Column(INTEGER, "seats by clock time at 1 % for independent developers"),
        "reference_fraction": Column(REAL, "the criterion's share with that many developers"),
    },
    "seats_correlation": {
        "case": _CASE,
        "rho": Column(REAL, "intra-class correlation of two developers' busy times (beta-binomial)"),
        "criterion": Column(TEXT, "what the share is of"),
        "level_fraction": _LEVEL,
        "seats": Column(INTEGER, "most developers on one server"),
        "break_even_developers": Column(REAL, "subscriptions that cost as much as one server"),
    },
    "seats_assumptions": {
        "case": _CASE,
        "assumption": Column(TEXT, "which one is changed; the others stay"),
        "setting": Column(TEXT, "to what"),
        "seats": Column(INTEGER, "most developers on one server at 1 % of clock time, or of what the setting says"),
        "base_seats": Column(INTEGER, "the same with nothing changed"),
        "break_even_developers": Column(REAL, "subscriptions that cost as much as one server"),
    },
    "seats_servers": {
        "case": _CASE,
        "developers": Column(INTEGER, "in the team"),
        "reading": Column(TEXT, "when servers are enough"),
        "servers": Column(INTEGER, "fewest that are"),
        "servers_paid": Column(INTEGER, "with the spare ones"),
        "bill_month": Column(REAL, "for all of them and operations, in the currency"),
        "currency": Column(TEXT, "of the bill"),
        "saving_fraction": Column(REAL, "of the price of the subscriptions; negative: dearer"),
    },
    "seats_cost": {
        "case": _CASE,
        "setting": Column(TEXT, "what is changed about the bill"),
        "developers": Column(INTEGER, "in the team"),
        "servers": Column(INTEGER, "pooled, at 1 % of clock time, with the spare ones"),
        "break_even_developers": Column(REAL, "subscriptions that cost as much as one server at work"),
        "saving_fraction": Column(REAL, "of the price of the subscriptions; negative: dearer"),
        "clock_seats": Column(INTEGER, "seats of one server at 1 % of clock time"),
        "experienced_seats": Column(INTEGER, "seats of one server at 1 % of generated stream time"),
    },
    "seats_fan": {
        "case": _CASE,
        "q_from": Column(TEXT, "where the distribution of q comes from"),
        "quantile": Column(REAL, "of the seats"),
        "q_fraction": Column(REAL, "q at that quantile; a high q gives few seats"),
        "streams": Column(INTEGER, "that the server holds at the floor"),
        "clock_seats": Column(INTEGER, "at 1 % of clock time"),
        "experienced_seats": Column(INTEGER, "at 1 % of generated stream time"),
    },
    "seats_interval": {
        "case": _CASE,
        "q_from": Column(TEXT, "where the distribution of q comes from"),
        "quantity": Column(TEXT, "what the interval is of"),
        "value": Column(REAL, "at the case's q"),
        "low": Column(REAL, "lower end of the 95 % interval"),
        "median": Column(REAL, "median"),
        "high": Column(REAL, "upper end of the 95 % interval"),
    },
    "seats_episodes": {
        "case": _CASE,
        "developers": Column(INTEGER, "on one server"),
        "windows": Column(INTEGER, "working windows that were simulated"),
        "q_fraction": Column(REAL, "mean busy streams of a developer in the simulation"),
        "clock_fraction": Column(REAL, f"of clock time {_MORE_THAN_K}, simulated"),
        "clock_exact_fraction": Column(REAL, "the same by the binomial formula"),
        "experienced_fraction": Column(REAL, f"of generated stream time {_MORE_THAN_K}, simulated"),
        "experienced_exact_fraction": Column(REAL, "the same by the binomial formula"),
        "episodes_per_window": Column(REAL, f"periods {_MORE_THAN_K}, per working window"),
        "episode_mean_s": Column(REAL, "their mean length; null without any, as are the two below", nullable=True),
        "episode_median_s": Column(REAL, "their median length", nullable=True),
        "episode_p95_s": Column(REAL, "95th percentile of their length", nullable=True),
        "turns_per_developer_window": Column(REAL, "turns that begin, per developer and working window"),
        "arrives_full_fraction": Column(REAL, "of the turns, that find all streams taken; null if not asked", nullable=True),
        "touched_fraction": Column(REAL, "of the turns, in overload at any time", nullable=True),
        "lost_s_per_turn": Column(REAL, "seconds of work at capacity's speed that overload costs a turn", nullable=True),
    },
    "seats_episode_lengths": {
        "case": _CASE,
        "developers": Column(INTEGER, "on one server"),
        "length_s": Column(REAL, "length of an overload episode"),
        "cumulative_fraction": Column(REAL, "of the episodes, not longer"),
    },
    "seats_routing": {
        "case": _CASE,
        "developers": Column(INTEGER, "in the team"),
        "servers": Column(INTEGER, "of the team"),
        "routing": Column(TEXT, "how a turn finds its server, see seats/routing.py"),
        "windows": Column(INTEGER, "working windows that were simulated"),
        "clock_fraction": Column(REAL, f"of server time {_MORE_THAN_K}; pooled: of all servers together"),
        "experienced_fraction": Column(REAL, "of generated stream time, the same"),
        "away_fraction": Column(REAL, "of the turns, not on the developer's home; null without homes", nullable=True),
        "cold_fraction": Column(REAL, "of the turns, on a server that lacks the session's prefix"),
        "reread_tokens_per_turn": Column(REAL, "tokens of prefix read again, over all turns"),
        "reread_s_per_turn": Column(REAL, "the same as time; null without a prefill speed", nullable=True),
        "q_with_reread_fraction": Column(REAL, "q if that time were added; not fed back", nullable=True),
    },
    "seats_residency": {
        "case": _CASE,
        "kv_cache_tokens": Column(INTEGER, "that the KV cache of one server holds"),
        "context_mean_tokens": Column(REAL, "mean context of the trace's requests"),
        "mean_contexts": Column(REAL, "mean contexts that fit"),
        "level_fraction": Column(REAL, "probability that the contexts do not fit, at most"),
        "resident_developers": Column(INTEGER, "most developers whose contexts stay, one each"),
        "clock_seats": Column(INTEGER, "seats by streams, at the same level of clock time"),
        "experienced_seats": Column(INTEGER, "seats by streams, at the same level of generated stream time"),
    },
}

ATTEMPTS = {
    "run": KEYS["run"],
    "attempt": Column(TEXT, "name of a start that memory may refuse"),
    "arguments": Column(TEXT, "arguments of the engine that differ from the host's, as JSON"),
    "predicted": Column(TEXT, "where the memory model says that it ends, see fit/budget.py: fits, or what lacks memory"),
    "found": Column(TEXT, "where it ended by the engine's own log; other: for another reason"),
    "agrees": Column(FLAG, "predicted and found are the same"),
    "message": Column(TEXT, "the line of the log that says so, cut to its last 400 characters"),
    "duration_s": Column(REAL, "from launch until it was ready, or all its processes were gone"),
}
CAPACITY = {
    "run": KEYS["run"],
    "boot": Column(INTEGER, "the last of the starts that are judged together, from 0"),
    "arm": ARM,
    "cold_share_fraction": COLD_SHARE,
    "situation": Column(TEXT, "name of the cells that are levels of one situation"),
    "streams": Column(INTEGER, "the level: streams at work at once"),
    "requests": Column(INTEGER, "measured requests of the level whose speed is known"),
    "median_prompt_tokens": Column(REAL, "their median prompt; null if there are none", nullable=True),
    "median_tok_per_s": Column(REAL, "their median speed of a stream; null if too few", nullable=True),
    "p5_tok_per_s": Column(REAL, "their 5th percentile; null if fewer than 59", nullable=True),
    "floor_tok_per_s": Column(REAL, "speed that a stream must hold"),
    "margin_fraction": Column(REAL, "of the floor, on top of it for the median"),
    "holds": Column(FLAG, "median above floor and margin, 5th percentile above the floor; null if too few", nullable=True),
    "capacity_streams": Column(INTEGER, "largest level of the situation that holds, with every smaller one; 0 if none"),
    "capacity_is": Column(
        TEXT, "exact: a larger level fails; at least: none that was measured does, or it has too few samples"
    ),
}

TOPOLOGY = {
    "run": KEYS["run"],
    "link": Column(
        TEXT,
        "host copy and host read by cores; host to gpu and gpu to host by a copy engine; in place: a kernel reads host memory; "
        "gpu memory: it reads its own; gpu to gpu",
    ),
    "source": Column(TEXT, "where the bytes lie: a NUMA node of the host or a GPU, with its number"),
    "target": Column(TEXT, "where they go; null for a read", nullable=True),
    "by": Column(TEXT, "whose cores, copy engine or kernel moves them: a NUMA node or a GPU"),
    "threads": Column(INTEGER, "threads that share the work; null for a GPU", nullable=True),
    "at_once": Column(INTEGER, "GPUs that did the same at the same time; the rate is that of one"),
    "crosses_nodes": Column(FLAG, "the bytes pass between two NUMA nodes; null where a GPU's node is not known", nullable=True),
    "path": Column(TEXT, "PCIe generation and width under load, or the driver's name for how two GPUs meet", nullable=True),
    "buffer_bytes": Column(INTEGER, "size of the source"),
    "cache_bytes": Column(INTEGER, "last-level cache of the cores; null for a GPU or if not told", nullable=True),
    "repeats": Column(INTEGER, "timed repeats, after one that is not"),
    "rate_bytes_per_s": Column(REAL, "their median; each byte of the source counts once, copied or read"),
    "lowest_bytes_per_s": Column(REAL, "slowest repeat"),
    "highest_bytes_per_s": Column(REAL, "fastest repeat"),
    "proved": Column(FLAG, "the kernel or the driver confirms that the memory lies where the row says"),
}

_SYSTEM = Column(TEXT, "name of a way to get answers: the model launched with some arguments, or a remote server")
_TASK = Column(TEXT, "gsm8k, ifeval or humaneval")
_MEASURE = Column(TEXT, "what is scored, see quality/answers.py; a task is judged by its first measure")
_PAIR = {
    "run": KEYS["run"],
    "comparison": Column(TEXT, "name of the comparison of two systems"),
    "a": Column(TEXT, "the system in question"),
    "b": Column(TEXT, "the reference"),
    "same": Column(FLAG, "the two are the same in all but chance (A/A): what differs between them is noise"),
}
_FLAG_MEANINGS = {
    "truncated": "ended by its token budget",
    "empty": "without text",
    "refused": "refused by the model or a filter",
    "extraction_failed": "from which nothing could be extracted",
    "failed": "without a reply after all attempts",
}

QUALITY = {
    "quality_systems": {
        "run": KEYS["run"],
        "system": _SYSTEM,
        "model": Column(TEXT, "as the server names it"),
        "server": Column(TEXT, "launched, or the host of the remote server's address"),
        "arguments": Column(TEXT, "engine arguments that differ from the host's, as JSON"),
        "at_once": Column(INTEGER, "requests at once"),
        "temperature": Column(REAL, "of sampling; 0: none"),
        "seed": Column(INTEGER, "of the order of questions; also sent to the server"),
        "startup_s": Column(REAL, "from launch to ready; null for a remote server", nullable=True),
        "asked": Column(INTEGER, "questions"),
        "answered": Column(INTEGER, "of them with a reply"),
        "retries": Column(INTEGER, "attempts after the first, over all questions"),
        "prompt_tokens": Column(INTEGER, "by the server's usage; null if it did not always say, as is the next", nullable=True),
        "output_tokens": Column(INTEGER, "by the server's usage", nullable=True),
        "answering_s": Column(REAL, "sum over requests of the time from sending to the whole reply"),
        "first_sent_at": Column(TEXT, "wall clock in UTC of the first question"),
        "last_sent_at": Column(TEXT, "wall clock in UTC of the last question"),
        "estimated_price": Column(REAL, "at most, said before asking; null without prices", nullable=True),
        "price": Column(REAL, "by the server's token counts; null without prices or counts", nullable=True),
        "currency": Column(TEXT, "of the prices; null without prices", nullable=True),
    },
    "quality_answers": {
        "run": KEYS["run"],
        "system": _SYSTEM,
        "task": _TASK,
        "tier": Column(TEXT, "own: written for this project; fast, full: of the public set, see quality/items/"),
        "item": Column(TEXT, "name of the item in its set"),
        "known_bad": Column(FLAG, "declared beforehand to have a faulty prompt, test or answer"),
        "order": Column(INTEGER, "place in the shuffled order of all questions of the servers that were up together"),
        "sent_at": Column(TEXT, "wall clock in UTC"),
        "request_sha256": Column(TEXT, "SHA-256 of the request's body"),
        "max_tokens": Column(INTEGER, "budget of the answer"),
        "reply": Column(TEXT, "the answer's text, without thinking; the body as it came is in the run's replies.jsonl"),
        "finish_reason": Column(TEXT, "as the server says", nullable=True),
        "prompt_tokens": Column(INTEGER, "by the server's usage", nullable=True),
        "output_tokens": Column(INTEGER, "by the server's usage", nullable=True),
        "extracted": Column(TEXT, "the number or code that was judged; null for ifeval, or if none was found", nullable=True),
        "score": Column(REAL, "of the task's first measure, 0 or 1"),
        "instructions_fraction": Column(REAL, "ifeval: share of the item's instructions that are followed", nullable=True),
        "strict_score": Column(REAL, "gsm8k, recorded only: strict-match of lm-evaluation-harness", nullable=True),
        "flexible_score": Column(REAL, "gsm8k, recorded only: flexible-extract of lm-evaluation-harness", nullable=True),
        "loose_score": Column(REAL, "ifeval, recorded only: followed without first or last line or asterisks", nullable=True),
        **{name: Column(FLAG, f"an answer {meaning}") for name, meaning in _FLAG_MEANINGS.items()},
        "retries": Column(INTEGER, "attempts after the first"),
        "confinement": Column(TEXT, "humaneval: what the program ran in; null if none ran", nullable=True),
        "message": Column(TEXT, "why a request or a program failed", nullable=True),
    },
    "quality_tasks": {
        "run": KEYS["run"],
        "system": _SYSTEM,
        "task": _TASK,
        "measure": _MEASURE,
        "items": Column(INTEGER, "answers that are scored: all that were asked for"),
        "score_fraction": Column(REAL, "mean score"),
        "low_fraction": Column(REAL, "lower end of its 95 % interval; null if the spread is not known", nullable=True),
        "high_fraction": Column(REAL, "upper end", nullable=True),
        "interval": Column(TEXT, "Wilson: of a proportion; clustered: normal, by the standard error over items"),
        **{f"{name}_fraction": Column(REAL, f"of the answers, {meaning}") for name, meaning in _FLAG_MEANINGS.items()},
        "retried_fraction": Column(REAL, "of the answers, got by more than one attempt"),
        "flagged_fraction": Column(REAL, "of the answers, any of these"),
        "gate_open": Column(FLAG, "no flag is on more than 1 % of the answers; else read the next four beside the score"),
        "unflagged_items": Column(INTEGER, "answers without a flag"),
        "unflagged_fraction": Column(REAL, "their mean score; null if there are none", nullable=True),
        "worst_fraction": Column(REAL, "mean score if all answers with a flag were wrong"),
        "best_fraction": Column(REAL, "mean score if they were all right"),
    },
    "quality_paired": {
        **_PAIR,
        "reading": Column(TEXT, "all items; without flagged: items without a flag on either side; without known bad items"),
        "task": _TASK,
        "measure": _MEASURE,
        "items": Column(INTEGER, "pairs of answers"),
        "a_fraction": Column(REAL, "mean score of a"),
        "b_fraction": Column(REAL, "mean score of b"),
        "difference_fraction": Column(REAL, "a less b"),
        "low_fraction": Column(REAL, "lower end of its 95 % interval; null if the spread is not known", nullable=True),
        "high_fraction": Column(REAL, "upper end", nullable=True),
        "interval": Column(TEXT, "Tango: score interval of a paired difference; clustered: by the standard error over items"),
        "wins": Column(INTEGER, "items on which a scores higher"),
        "losses": Column(INTEGER, "items on which b scores higher"),
        "flip_fraction": Column(REAL, "of the items, either; of an A/A comparison the noise"),
        "flip_high_fraction": Column(REAL, "upper end of its exact 95 % interval"),
        "text_changed_fraction": Column(REAL, "of the items, answered with another text"),
        "mcnemar_p": Column(REAL, "exact, as information: no evidence of equality; null for fractions", nullable=True),
        "margin_fraction": Column(REAL, "a loss that would matter, fixed in the experiment's file"),
        "noninferior_p": Column(REAL, "one-sided, that a is worse by the margin or more; null without spread", nullable=True),
        "holm_p": Column(REAL, "the same, adjusted over the tasks; null for measures that judge nothing", nullable=True),
        "verdict": Column(
            TEXT,
            "non-inferior: adjusted p at most 5 %; inferior: the whole interval beyond the margin; inconclusive: neither; "
            "uninformative: b itself scores no more than the margin; not judged: not the task's first measure",
        ),
        "detectable_fraction": Column(
            REAL, "difference found with 80 % power at this share of flips, or its upper end if there are none", nullable=True
        ),
        "flagged_fraction": Column(REAL, "of the pairs, with a flag on either side"),
        "worst_fraction": Column(REAL, "difference if in every such pair b alone were right"),
        "best_fraction": Column(REAL, "difference if in every such pair a alone were right"),
    },
    "quality_agreement": {
        **_PAIR,
        "texts": Column(INTEGER, "texts of quality/items/texts.yaml that both read"),
        "tokens": Column(INTEGER, "tokens judged: all of the texts but each one's first"),
        "a_nll_nats": Column(REAL, "mean negative log-likelihood of a token under a"),
        "b_nll_nats": Column(REAL, "mean negative log-likelihood of a token under b"),
        "difference_nats": Column(REAL, "b less a, mean over texts: positive where a likes the texts better"),
        "difference_low_nats": Column(REAL, "lower end of its 95 % interval over texts; null if all are equal", nullable=True),
        "difference_high_nats": Column(REAL, "upper end", nullable=True),
        "largest_difference_nats": Column(REAL, "largest difference of one token's log-probability, without sign"),
        "same_first_fraction": Column(REAL, "of the tokens, with the same most likely next token"),
        "divergence_nats": Column(REAL, "mean Kullback-Leibler divergence of b from a, a lower bound: quality/agreement.py"),
        "largest_divergence_nats": Column(REAL, "of one token"),
        "diverged_texts": Column(INTEGER, "texts after which the two wrote something else"),
        "first_divergence_tokens": Column(INTEGER, "fewest tokens written alike before that; null if none did", nullable=True),
        "identical_texts": Column(INTEGER, "texts with every number and every written token bit for bit the same"),
        "identical": Column(FLAG, "all of them"),
    },
    "quality_texts": {
        **_PAIR,
        "text": Column(TEXT, "name of the text in quality/items/texts.yaml"),
        "tokens": Column(INTEGER, "its tokens but the first"),
        "a_nll_nats": Column(REAL, "mean negative log-likelihood of a token under a"),
        "b_nll_nats": Column(REAL, "mean negative log-likelihood of a token under b"),
        "same_first_fraction": Column(REAL, "of its tokens, with the same most likely next token"),
        "divergence_nats": Column(REAL, "mean over its tokens"),
        "written_tokens": Column(INTEGER, "tokens that both wrote after it, without sampling"),
        "diverges_after_tokens": Column(INTEGER, "of them alike before the first other one; null if all are", nullable=True),
        "identical": Column(FLAG, "every number and every written token bit for bit the same"),
    },
    "quality_tokens": {
        **_PAIR,
        "text": Column(TEXT, "name of the text"),
        "position": Column(INTEGER, "of the token in the text, 0 for its second token"),
        "token": Column(INTEGER, "id of the token that stands there"),
        "a_logprob": Column(REAL, "its log-probability under a, natural logarithm"),
        "b_logprob": Column(REAL, "its log-probability under b"),
        "same_first": Column(FLAG, "both find the same token the most likely"),
        "divergence_nats": Column(REAL, "Kullback-Leibler divergence of b from a at this place, a lower bound"),
    },
    "quality_published": {
        "task": _TASK,
        "published_difference_fraction": Column(REAL, "this deployment less the vendor's API, as the article states it"),
        "published_low_fraction": Column(REAL, "lower end of its interval; null if none is stated", nullable=True),
        "published_high_fraction": Column(REAL, "upper end", nullable=True),
        "items": Column(INTEGER, "items; inferred for humaneval, as are wins and losses of all"),
        "wins": Column(INTEGER, "inferred: items that only the deployment solved"),
        "losses": Column(INTEGER, "inferred: items that only the vendor's API solved"),
        "bootstrap_low_fraction": Column(REAL, "lower end of the exact percentile bootstrap from these counts"),
        "bootstrap_high_fraction": Column(REAL, "upper end"),
        "reproduced": Column(FLAG, "rounded to three digits, the bootstrap gives the stated interval", nullable=True),
        "score_low_fraction": Column(REAL, "lower end of Tango's score interval from these counts"),
        "score_high_fraction": Column(REAL, "upper end"),
        "mcnemar_p": Column(REAL, "exact, as information"),
    },
}

TABLES: dict[str, dict[str, Column]] = {
    "arms": ARMS,
    "attempts": ATTEMPTS,
    "boots": BOOTS,
    "capacity": CAPACITY,
    "cells": CELLS,
    "requests": REQUESTS,
    "chunks": CHUNKS,
    "server_metrics": SERVER_METRICS,
    "client_metrics": CLIENT_METRICS,
    "gpu_metrics": GPU_METRICS,
    "residency": RESIDENCY,
    "link_line": LINK_LINE,
    "shifts": SHIFTS,
    "step_times": STEP_TIMES,
    "memory": MEMORY,
    "topology": TOPOLOGY,
    **ACTIVITY,
    **SEATS,
    **QUALITY,
}


def schema(table: str, found: Collection[str] = ()) -> pa.Schema:
    """The Arrow schema of a table, with those of its optional columns that are among `found`.

    Raises KeyError with the known names if there is no table of that name.
    """
    if table not in TABLES:
        raise KeyError(f"no table {table!r}; known: {', '.join(sorted(TABLES))}")
    columns = {name: column for name, column in TABLES[table].items() if not column.optional or name in found}
    return pa.schema([pa.field(name, column.type, column.nullable) for name, column in columns.items()])
