"""`spillway fit MODEL --host HOST`: what fits, with how much to spare, and the smallest plan that makes it fit.

Exit status 0: it fits. 1: it does not. 2: the question is wrong, and the message says what to change.
"""

import argparse
import json
import sys
from pathlib import Path

from spillway.fit.architectures import UnknownArchitectureError, describe
from spillway.fit.budget import GIB, Budget, Capacity, Demand, OnHost, budget, capacity_of
from spillway.fit.checkpoint import component_of, stored_bytes_by_component
from spillway.fit.formats import SPELLINGS, parse_format
from spillway.fit.placing import Headroom, Rates, Step, all_on_host, decode_step, layer_numbers, smallest_plan
from spillway.fit.published import Card, card_named
from spillway.fit.report import Placed, Report
from spillway.fit.shapes import Model
from spillway.fit.sources import Description, find_model
from spillway.fit.unknown import FACTS, model_from_facts, parse_facts
from spillway.fit.weights import FitError, bytes_by_component
from spillway.placement.plan import PlanError, check_model, identify_model, load_plan, read_json
from spillway.spec.host import Host
from spillway.spec.read import SpecError, read

COLD_SHARES = (0.02, 0.05, 0.1)
PREFILL_CHUNK = 8192


def main(argv: list[str]) -> int:
    """Run the command; prints the report, or one message on standard error with status 2."""
    options = parser().parse_args(argv)
    try:
        report = answer(options)
        if options.plot:
            from spillway.fit.plot import save_plot  # with Matplotlib, for which no other answer waits

            save_plot(report.placements, report.title, options.plot)
    except (FitError, SpecError, PlanError) as error:
        print(f"spillway fit: {error}", file=sys.stderr)
        return 2
    print(json.dumps(report.json(), indent=1) if options.json else report.text())
    return 0 if report.asked.budget.fits else 1


def answer(options: argparse.Namespace) -> Report:
    """The report for parsed options; raises FitError, SpecError and PlanError."""
    description = find_model(options.model, options.root, options.headers)
    host = read(Host, options.root / "experiments" / "hosts" / f"{options.host}.yaml")
    capacity = capacity_of(host)
    notes: list[str] = []
    model, start = _model(description, options, notes)
    demand = Demand(options.context, options.sequences, options.cache, options.draft)
    card = card_named(host.gpus.name) if host.gpus else None
    headroom = _headroom(description, model, host, card, options, notes)

    def placed(name: str, on_host: OnHost) -> Placed:
        return Placed(name, on_host, budget(model, capacity, demand, on_host, headroom))

    none = placed("no plan", start)
    notes += _residual(description, options, none.budget)
    asked, smallest = none, None
    placements = [none]
    if options.plan:
        asked = placed("with the plan", _plan(options.plan, description, model, start))
        placements.append(asked)
    if not asked.budget.fits and (found := smallest_plan(model, capacity, demand, start, headroom)):
        smallest = Placed("smallest plan", *found)
        placements.append(smallest)
    if capacity.gpus and model.routed_experts:
        placements.append(placed("all on host", all_on_host(model, start)))
    rates, rates_source = _rates(card, host, options)
    plan = smallest or (asked if options.plan else None)
    steps: tuple[Step, ...] = ()
    if rates and plan and plan.on_host.expert_count:
        uniform = plan.on_host.expert_count / model.routed_experts
        shares = options.cold_share or [*(share for share in COLD_SHARES if share < uniform), uniform]
        steps = tuple(decode_step(model, capacity.gpus, options.sequences, share, rates) for share in shares)
    return Report(
        title=_title(description, host, capacity, demand, options),
        notes=tuple(notes),
        placements=tuple(placements),
        asked=asked,
        smallest=smallest,
        steps=steps,
        rows=options.sequences,
        rates=rates,
        rates_source=rates_source,
        stored=_stored(description, model),
    )


def _model(description: Description, options: argparse.Namespace, notes: list[str]) -> tuple[Model, OnHost]:
    """The model in the formats asked for, and what its deployment keeps on the host without any plan."""
    facts = parse_facts(options.fact)
    try:
        model = describe(description.config)
    except UnknownArchitectureError as error:
        names = description.config["architectures"]
        try:
            model = model_from_facts(", ".join(map(str, names)), description.tensors, facts)
        except FitError as missing:
            raise FitError(f"{error}\n{missing}") from None
        notes.append("architecture not known here: what is not a routed expert counts in full on every GPU")
    else:
        if facts:
            raise FitError(f"--fact {next(iter(facts))}: this architecture is known; its configuration says that number")
    if not model.routed_experts:
        notes.append("no routed experts: there is nothing that a plan could place")
    formats, replicated, components = {}, frozenset[str](), set(options.on_host)
    if options.pack:
        packs = description.published.packs if description.published else {}
        if options.pack not in packs:
            raise FitError(f"--pack {options.pack}: known for this model: {', '.join(packs) or 'none'}")
        pack = packs[options.pack]
        formats = {name: parse_format(text) for name, text in pack.formats.items()}
        replicated, components = frozenset(pack.replicated), components | set(pack.on_host)
        notes.append(f"pack {options.pack}: {pack.source}")
    for text in options.format:
        name, _, spelling = text.partition("=")
        if name not in {group.component for group in model.weights}:
            raise FitError(f"--format {text}: the model has no component {name!r}")
        try:
            formats[name] = parse_format(spelling)
        except ValueError as error:
            raise FitError(f"--format {text}: {error}") from None
    paged = not options.pack
    return model.stored_as(formats, replicated), OnHost(components=frozenset(components), paged=paged)


def _plan(path: Path, description: Description, model: Model, start: OnHost) -> OnHost:
    """What a plan file puts on the host; a file without schema_version is read as the bare form of layer -> ids."""
    content = read_json(path)
    if isinstance(content, dict) and "schema_version" not in content:
        return OnHost(layer_numbers(str(path), content), start.components, start.paged)
    plan = load_plan(path)
    check_model(plan, identify_model(description.config))
    components = {component_of(f"{name}.") for name in plan.parameters}
    return OnHost(layer_numbers(str(path), plan.layers), start.components | components, start.paged)


def _headroom(
    description: Description, model: Model, host: Host, card: Card | None, options: argparse.Namespace, notes: list[str]
) -> Headroom:
    """What the engine takes beside weights and cache entries on each GPU, as measured on that card or stated."""
    terms: list[tuple[str, int, str]] = []
    if host.gpus is None:
        notes.append("what the engine's process takes beside weights and KV cache is not predicted")
    elif options.headroom_gib is not None:
        terms.append(("headroom", round(options.headroom_gib * GIB), "stated"))
    elif card is not None and card.headroom:
        terms += [(term.term, round(term.gib * GIB), term.source) for term in card.headroom]
    else:
        notes.append(
            f"no measured headroom for {host.gpus.name}: what is left must also hold activations, graphs and the driver's "
            "context; state it with --headroom-gib"
        )
    measured = description.published.measured_cache if description.published else None
    if measured is not None and measured.format == options.cache:
        chunk = host.engine.arguments.get("max-num-batched-tokens", PREFILL_CHUNK)
        if isinstance(chunk, bool) or not isinstance(chunk, int):
            raise FitError(f"engine.arguments.max-num-batched-tokens: found {chunk!r}; expected a whole number")
        fixed = measured.fixed_bytes(model.cache(options.cache, 1).token_bytes, chunk)
        terms.append((f"KV cache, fixed part at chunks of {chunk:,}", fixed, measured.source))
    return tuple(terms)


def _residual(description: Description, options: argparse.Namespace, found: Budget) -> list[str]:
    """What was published of a pack's weights on each GPU beside what is computed; the difference is not explained."""
    pack = description.published.packs[options.pack] if description.published and options.pack else None
    published = pack.weights_per_gpu_gib.get(found.capacity.gpus) if pack else None
    if published is None:
        return []
    computed = found.total("gpu", "weights") / GIB
    return [
        f"weights on each GPU without a plan: published {published:.1f} GiB, computed {computed:.2f}; "
        f"not explained {published - computed:+.2f}"
    ]


def _rates(card: Card | None, host: Host, options: argparse.Namespace) -> tuple[Rates | None, str]:
    memory, read_host = options.memory_gb_per_s, options.host_read_gb_per_s
    if memory and read_host:
        return Rates(memory * 1e9, read_host * 1e9), f"{memory:g} GB/s from GPU memory, {read_host:g} from the host, stated"
    if card is None:
        name = host.gpus.name if host.gpus else "a host without GPUs"
        return None, f"rates of {name} are not known: state --memory-gb-per-s and --host-read-gb-per-s"
    memory, read_host = memory or card.memory_gb_per_s, read_host or card.host_read_gb_per_s
    return Rates(memory * 1e9, read_host * 1e9), (
        f"{memory:g} GB/s from GPU memory, {read_host:g} from the host; {card.memory_source}; {card.host_read_source}"
    )


def _stored(description: Description, model: Model) -> tuple[tuple[str, int, int], ...]:
    """Component, computed and stored bytes, where there is a checkpoint and the computed side does not come from it."""
    if description.tensors is None or model.source != "computed":
        return ()
    layers = description.config.get("num_hidden_layers")
    stored = stored_bytes_by_component(description.tensors, layers if isinstance(layers, int) else None)
    computed = bytes_by_component([*model.weights, *model.draft])
    return tuple((name, computed.get(name, 0), stored.get(name, 0)) for name in dict.fromkeys([*computed, *stored]))


def _title(description: Description, host: Host, capacity: Capacity, demand: Demand, options: argparse.Namespace) -> str:
    what = f"{description.name} ({options.pack})" if options.pack else description.name
    where = f"{capacity.gpus} x {host.gpus.name}" if host.gpus else host.title
    return f"{what} on {options.host}: {where}; {demand.sequences} x {demand.context_tokens:,} tokens, KV cache {demand.cache}"


def parser() -> argparse.ArgumentParser:
    """The options of the command."""
    made = argparse.ArgumentParser(
        prog="spillway fit",
        description="Predict what fits, line by line. Status 0: it fits; 1: it does not; 2: the question is wrong.",
    )
    made.add_argument("model", help="folder with config.json, URL, name in experiments/models/, or published name")
    made.add_argument("--host", required=True, help="name in experiments/hosts/")
    made.add_argument("--context", type=_positive, default=4096, metavar="N", help="tokens of one sequence (4096)")
    made.add_argument("--sequences", type=_positive, default=1, metavar="M", help="sequences at once (1)")
    made.add_argument("--cache", default="bf16", help="format of the KV cache: bf16, fp8, for some models fp4 (bf16)")
    made.add_argument("--plan", type=Path, metavar="FILE", help="judge this placement plan")
    made.add_argument("--pack", help="a published pack of a published model")
    made.add_argument("--format", action="append", default=[], metavar="COMPONENT=FORMAT", help=SPELLINGS)
    made.add_argument("--on-host", action="append", default=[], metavar="COMPONENT", help="keep it whole on the host")
    made.add_argument("--draft", action="store_true", help="count the draft layers: the server speculates with them")
    made.add_argument("--headers", action="store_true", help="for a URL: read the checkpoint's headers too")
    made.add_argument(
        "--fact", action="append", default=[], metavar="NAME=NUMBER", help=f"unknown architectures: {', '.join(FACTS)}"
    )
    made.add_argument("--headroom-gib", type=_not_negative, metavar="GIB", help="beside weights and cache, on each GPU")
    made.add_argument("--cold-share", type=_share, action="append", metavar="S", help="share of picks on the host, 0 to 1")
    made.add_argument("--memory-gb-per-s", type=_not_negative, metavar="RATE", help="reads of GPU memory")
    made.add_argument("--host-read-gb-per-s", type=_not_negative, metavar="RATE", help="reads of host memory in place")
    made.add_argument("--json", action="store_true", help="print JSON")
    made.add_argument("--plot", type=Path, metavar="FILE", help="write the plot (.pdf, .svg or .png)")
    made.add_argument("--root", type=Path, default=Path(), help="folder that holds experiments/ (here)")
    return made


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"found {text!r}; expected a whole number above 0")
    return int(text)


def _not_negative(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < 1e9:
        raise argparse.ArgumentTypeError(f"found {text!r}; expected a number of at least 0")
    return number


def _share(text: str) -> float:
    number = _not_negative(text)
    if number > 1:
        raise argparse.ArgumentTypeError(f"found {text!r}; expected a number from 0 to 1")
    return number
