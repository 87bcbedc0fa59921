"""`spillway plan`: make, check, show and convert placement plans."""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from spillway.placement import choose
from spillway.placement.counts import ExpertCounts, load_counts
from spillway.placement.engine_plan import counts_of, write_bare
from spillway.placement.plan import (
    ModelIdentity,
    Plan,
    PlanError,
    check_model,
    identify_model,
    import_bare,
    load_plan,
    moe_layers,
    read_json,
)
from spillway.placement.proof import ProofError, require_proof

_BUDGET = ("gpu_bytes", "kv_bytes", "other_bytes")
_SIZE = ("host_experts", *_BUDGET, "ranks")
# What each builder takes beside --out, --counts and --model.
_TAKES = {
    "coldest": ("kind", *_SIZE),
    "coldest-per-layer": ("kind", *_SIZE),
    "whole-layers": ("host_layers",),
    "random": ("seed", *_SIZE),
}


def main(arguments: Sequence[str]) -> int:
    """Run the subcommand; 0 when it did what was asked, 1 with one line of reason when the input does not allow it."""
    options = _parser().parse_args(arguments)
    try:
        options.run(options)
    except (PlanError, ProofError) as error:
        print(f"spillway plan: {error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="spillway plan", description=__doc__)
    commands = parser.add_subparsers(required=True)

    build = commands.add_parser("build", help="choose experts and write a plan")
    build.add_argument("builder", choices=list(_TAKES))
    build.add_argument("--out", type=Path, required=True, help="the plan file to write")
    build.add_argument("--counts", type=Path, help="picks recorded from a server, or synthetic ones")
    build.add_argument("--kind", choices=["decode", "prefill", "both"], help="which picks count; without it both")
    build.add_argument("--model", type=Path, help="model folder or config.json, where there are no counts")
    size = build.add_argument_group("size: a number, or a budget of which the number follows")
    size.add_argument("--host-experts", type=int, help="of the model; coldest-per-layer: of each layer")
    size.add_argument("--host-layers", type=int, help="whole-layers only")
    size.add_argument("--gpu-bytes", type=int, help="memory of one GPU that may be used")
    size.add_argument("--kv-bytes", type=int, help="to be left for KV cache, all GPUs together")
    size.add_argument("--other-bytes", type=int, help="all that is neither routed expert nor KV cache, all GPUs together")
    size.add_argument("--ranks", type=int, help="tensor parallel size, of a budget; without it 1")
    build.add_argument("--seed", type=int, help="random only; without it 0")
    build.set_defaults(run=_build)

    check = commands.add_parser("check", help="is the plan sound, for this model, and good on other traffic")
    check.add_argument("plan", type=Path)
    check.add_argument("--model", type=Path, help="model folder or config.json that it must fit")
    check.add_argument("--counts", type=Path, help="counts of the model that it must fit, where config.json names no layers")
    check.add_argument("--held-out", type=Path, help="counts that it was not made from")
    check.add_argument(
        "--proof", type=Path, help="folder of a server's proofs (SPILLWAY_PROOF_DIR), which must agree with the plan"
    )
    check.add_argument("--ranks", type=int, default=1, help="tensor parallel size of that server")
    check.set_defaults(run=_check)

    show = commands.add_parser("show", help="what a plan does, for people")
    show.add_argument("plan", type=Path)
    show.set_defaults(run=lambda options: print(choose.describe(load_plan(options.plan))))

    export = commands.add_parser("export", help="write the bare {layer: [ids]} form")
    export.add_argument("plan", type=Path)
    export.add_argument("--out", type=Path, required=True)
    export.set_defaults(run=_export)

    take = commands.add_parser("import", help="make a checked plan from the bare form")
    take.add_argument("bare", type=Path)
    take.add_argument("--model", type=Path, help="model folder or config.json that it is for")
    take.add_argument("--counts", type=Path, help="counts of that model, where config.json names no layers")
    take.add_argument("--out", type=Path, required=True)
    take.set_defaults(run=_import)

    counts = commands.add_parser("counts", help="make a file of counts from the picks that the EXL3 host-expert patch recorded")
    counts.add_argument("picks", type=Path, help="its expert_stats.pt as JSON: {layer: [[decode], [prefill]]}")
    counts.add_argument("--model", type=Path, required=True, help="model folder or config.json that served")
    counts.add_argument("--out", type=Path, required=True)
    counts.set_defaults(run=_counts)
    return parser


def _read_model(path: Path) -> tuple[ModelIdentity, tuple[str, ...]]:
    config = read_json(path / "config.json" if os.path.isdir(path) else path)
    return identify_model(config), moe_layers(config)


def _write(save: Callable[[Path], None], path: Path) -> None:
    try:
        save(path)
    except OSError as error:
        raise PlanError(f"{path}: cannot be written: {error.strerror}") from error


def _build(options: argparse.Namespace) -> None:
    given = [name for name in ("kind", "host_layers", *_SIZE, "seed") if getattr(options, name) is not None]
    if unused := [_flag(name) for name in given if name not in _TAKES[options.builder]]:
        raise PlanError(f"{options.builder} does not take {', '.join(unused)}; leave out what it would ignore")
    model, layers, counts = _model_of(options)
    plan = _choose(options, counts, model, layers)
    _write(plan.save, options.out)
    print(choose.describe(plan))


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _model_of(options: argparse.Namespace) -> tuple[ModelIdentity, tuple[str, ...], ExpertCounts | None]:
    """The model and its layers, from --model or --counts, which must agree where both are given, and the counts."""
    counts = load_counts(options.counts) if options.counts else None
    if options.model is None:
        if counts is None:
            raise PlanError("which model? give --counts, or --model")
        return counts.model, tuple(counts.layers), counts
    model, layers = _read_model(options.model)
    if counts is not None and counts.model != model:
        raise PlanError(f"{options.counts}: counts of another model than {options.model}")
    return model, layers, counts


def _choose(options: argparse.Namespace, counts: ExpertCounts | None, model: ModelIdentity, layers: Sequence[str]) -> Plan:
    if options.builder == "whole-layers":
        if options.host_layers is None:
            raise PlanError("whole-layers needs --host-layers")
        return choose.whole_layers(model, layers, options.host_layers, counts)
    number = _number(options, model, len(layers))
    if options.builder == "random":
        seed = 0 if options.seed is None else options.seed
        return choose.random_experts(model, layers, number, seed, counts)
    if counts is None:
        raise PlanError(f"{options.builder} needs --counts: without picks no expert is known to be cold")
    builder = choose.coldest if options.builder == "coldest" else choose.coldest_per_layer
    return builder(counts, number, "both" if options.kind is None else options.kind)


def _number(options: argparse.Namespace, model: ModelIdentity, layers: int) -> int:
    given: dict[str, Any] = {name: getattr(options, name) for name in _BUDGET}
    if options.host_experts is not None:
        if any(value is not None for value in (*given.values(), options.ranks)):
            raise PlanError("give either --host-experts or a budget, not both")
        return int(options.host_experts)
    missing = [_flag(name) for name, value in given.items() if value is None]
    if missing:
        raise PlanError(f"how many experts? give --host-experts, or complete the budget with {', '.join(missing)}")
    ranks = 1 if options.ranks is None else options.ranks
    number = choose.experts_over_budget(model, layers, **given, ranks=ranks)
    if number == 0:
        raise PlanError("everything fits into the budget; serve without a plan")
    return -(-number // layers) if options.builder == "coldest-per-layer" else number


def _check(options: argparse.Namespace) -> None:
    plan = load_plan(options.plan)
    if options.model is not None or options.counts is not None:
        model, layers, _ = _model_of(options)
        check_model(plan, model, layers)
    print(choose.describe(plan))
    if options.held_out is not None:
        result = choose.hold_out(plan, load_counts(options.held_out))
        expected = "unknown" if result.expected is None else f"{result.expected:.2%}"
        print(
            f"held-out share of picks on the host: {result.found:.2%} (expected {expected}, best possible "
            f"{result.best:.2%}, random {result.blind:.2%}): {result.captured:.0%} of the possible gain"
        )
    if options.proof is not None:
        for proof in require_proof(plan, options.proof, options.ranks):
            rows = None if proof.switch_over is None else proof.switch_over.rows
            staged = "nothing" if rows is None else f"steps of {rows} rows or more"
            host, gpu, read = proof.host_bytes / 2**30, proof.gpu_bytes / 2**30, proof.host_read_bytes_per_s / 1e9
            print(
                f"rank {proof.rank} proves it: {host:.2f} GiB on the host, {gpu:.2f} GiB on the GPU; host pages are read at "
                f"{read:.1f} GB/s; staged: {staged}"
            )


def _export(options: argparse.Namespace) -> None:
    plan = load_plan(options.plan)
    _write(lambda path: write_bare(plan, path), options.out)


def _import(options: argparse.Namespace) -> None:
    model, layers, _ = _model_of(options)
    plan = import_bare(read_json(options.bare), model, layers, str(options.bare))
    _write(plan.save, options.out)
    print(choose.describe(plan))


def _counts(options: argparse.Namespace) -> None:
    model, layers = _read_model(options.model)
    _write(counts_of(read_json(options.picks), model, layers, str(options.picks)).save, options.out)
