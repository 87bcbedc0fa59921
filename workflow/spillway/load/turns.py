"""From a workload to its requests: endless streams of turns, made one by one as they are needed.

What a request looks like is drawn from the seed, so that two runs ask the same of their servers; what its tokens are is
drawn from the nonce, so that no run meets the cache of another. An answer's tokens are not known before it is given, nor
equal between servers: where a context keeps an answer, as many new tokens stand for it, and the reusable prefix of the
next request ends where the previous prompt ended.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from spillway.load.agents import AgentModel
from spillway.load.prompts import Alphabet, fresh
from spillway.load.trace import Session, read_sessions
from spillway.spec.workload import AgentTurns, Arrivals, CachedPrefix, Contexts, PromptSweep, Trace, Workload


@dataclass(frozen=True)
class Turn:
    """One request to send.

    `shared_tokens` are the leading tokens that an earlier request of the cell has sent, so that a cache may hold them.
    `wait_s` counts from the previous answer of the stream, `at_s` (open loop) from the cell's start.
    """

    prompt: bytes
    prompt_tokens: int
    output_tokens: int
    shared_tokens: int = 0
    wait_s: float = 0.0
    at_s: float | None = None


@dataclass(frozen=True)
class Plan:
    """A workload's requests: `prime` first and alone, then all streams at once, or the arrivals (then no streams)."""

    warmup: int
    measured: int  # per stream, or of the arrivals
    prime: Sequence[Turn] = ()
    streams: Sequence[Iterator[Turn]] = field(default_factory=list)
    arrivals: Iterator[Turn] | None = None

    @property
    def measured_in_all(self) -> int:
        return self.measured * (len(self.streams) if self.arrivals is None else 1)


def plan(workload: Workload, alphabet: Alphabet, *, seed: int, nonce: str, cell: str) -> Plan:
    """The requests of a workload; raises FileNotFoundError or ValueError if a file it names is absent or wrong."""
    nonce = f"{nonce}/{cell}"
    each = workload.requests // workload.most_streams
    match workload:
        case PromptSweep():
            streams = [_sweep(workload, alphabet, nonce, stream) for stream in range(workload.streams)]
            return Plan(workload.warmup, each, streams=streams)
        case CachedPrefix():
            prefix = alphabet.draw(workload.prefix_tokens, fresh(nonce, "prefix"))
            streams = [_suffixes(prefix, workload, alphabet, nonce, stream) for stream in range(workload.streams)]
            prime = next(_suffixes(prefix, workload, alphabet, nonce, "prime"))
            first = Turn(prime.prompt, prime.prompt_tokens, 1)
            return Plan(workload.warmup, each, prime=[first], streams=streams)
        case Contexts():
            streams = [_context(workload, alphabet, nonce, stream) for stream in range(workload.streams)]
            return Plan(workload.warmup, each, streams=streams)
        case AgentTurns():
            model = AgentModel.read(workload.distributions)
            streams = [_agent(workload, model, alphabet, seed, nonce, stream) for stream in range(workload.streams)]
            return Plan(workload.warmup, each, streams=streams)
        case Trace():
            sessions = read_sessions(workload.path)
            sessions = [sessions[at] for at in fresh(str(seed), "trace").permutation(len(sessions))]
            streams = [_replay(workload, sessions, alphabet, nonce, stream) for stream in range(workload.streams)]
            return Plan(workload.warmup, each, streams=streams)
        case Arrivals():
            return Plan(workload.warmup, each, arrivals=_arrivals(workload, alphabet, seed, nonce))


def _sweep(workload: PromptSweep, alphabet: Alphabet, nonce: str, stream: int) -> Iterator[Turn]:
    content = fresh(nonce, stream)
    while True:
        prompt = alphabet.json(alphabet.draw(workload.prompt_tokens, content))
        yield Turn(prompt, workload.prompt_tokens, workload.output_tokens)


def _suffixes(prefix: bytes, workload: CachedPrefix, alphabet: Alphabet, nonce: str, user: int | str) -> Iterator[Turn]:
    content = fresh(nonce, user)
    tokens = workload.prefix_tokens + workload.suffix_tokens
    while True:
        prompt = alphabet.json(prefix + alphabet.draw(workload.suffix_tokens, content))
        yield Turn(prompt, tokens, workload.output_tokens, shared_tokens=workload.prefix_tokens)


def _context(workload: Contexts, alphabet: Alphabet, nonce: str, stream: int) -> Iterator[Turn]:
    content = fresh(nonce, stream)
    held_tokens = workload.context_tokens - workload.suffix_tokens
    held = alphabet.draw(held_tokens, content)
    shared = 0
    while True:
        prompt = alphabet.json(held + alphabet.draw(workload.suffix_tokens, content))
        yield Turn(prompt, workload.context_tokens, workload.output_tokens, shared_tokens=shared)
        shared = held_tokens


def _agent(workload: AgentTurns, model: AgentModel, alphabet: Alphabet, seed: int, nonce: str, stream: int) -> Iterator[Turn]:
    shape, content = fresh(str(seed), "agent", stream), fresh(nonce, stream)
    limit = workload.context_limit_tokens

    def tokens(name: str, scale: float, most: int) -> int:
        return min(max(1, round(scale * model.draw(name, shape))), most)

    def new_context() -> bytearray:
        # Half the limit at most, so that every session has room to grow.
        length = tokens("first_context_tokens", workload.token_scale, max(1, limit // 2))
        return bytearray(alphabet.draw(length, content))

    context, shared, wait_s = new_context(), 0, 0.0
    while True:
        length = alphabet.tokens(context)
        output = tokens("output_tokens", workload.output_scale, workload.output_limit_tokens)
        yield Turn(alphabet.json(context), length, output, shared_tokens=shared, wait_s=wait_s)
        turn_ends = model.happens("turn_end_fraction", shape)
        pause, grows = ("person_s", "message_tokens") if turn_ends else ("tool_s", "tool_result_tokens")
        wait_s = min(workload.think_scale * model.draw(pause, shape), workload.think_limit_s)
        context += alphabet.draw(output + tokens(grows, workload.token_scale, limit), content)
        shared = length
        if model.happens("replaced_fraction", shape) or alphabet.tokens(context) > limit:
            context, shared = new_context(), 0


def _replay(workload: Trace, sessions: Sequence[Session], alphabet: Alphabet, nonce: str, stream: int) -> Iterator[Turn]:
    content = fresh(nonce, stream)
    at = stream
    while True:
        context, length = bytearray(), 0
        for request in sessions[at % len(sessions)]:
            wanted = min(max(1, round(workload.token_scale * request.input_tokens)), workload.context_limit_tokens)
            shared = min(round(workload.token_scale * request.shared_tokens), length, wanted)
            context = bytearray(alphabet.first(context, shared)) + alphabet.draw(wanted - shared, content)
            output = min(max(1, round(workload.output_scale * request.output_tokens)), workload.output_limit_tokens)
            # A session's first request follows at once on the end of another: there is no recorded pause between them.
            wait_s = min(workload.think_scale * request.think_s, workload.think_limit_s) if length else 0.0
            yield Turn(alphabet.json(context), wanted, output, shared_tokens=shared, wait_s=wait_s)
            length = wanted
        at += workload.streams


def _arrivals(workload: Arrivals, alphabet: Alphabet, seed: int, nonce: str) -> Iterator[Turn]:
    """Requests by an absolute schedule.

    asyncio-throttle would not do here: it polls every 10 ms whether fewer than `rate` tasks passed within the last
    period, so it lets a whole period's requests go at once, knows no distribution of gaps, and shifts everything after
    a late task. Latency from the schedule needs a schedule.
    """
    shape, content = fresh(str(seed), "arrivals"), fresh(nonce, "arrivals")
    at_s, mean_gap_s = 0.0, 1 / workload.rate_per_s
    while True:
        prompt = alphabet.json(alphabet.draw(workload.prompt_tokens, content))
        yield Turn(prompt, workload.prompt_tokens, workload.output_tokens, at_s=at_s)
        shape_parameter = workload.burstiness
        at_s += mean_gap_s if shape_parameter is None else shape.gamma(shape_parameter, mean_gap_s / shape_parameter)
