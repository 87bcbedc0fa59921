"""The checker of proofs: a sound proof passes, and every way of bending one is found."""

import re
from pathlib import Path

import pytest

from spillway.placement import choose, plan_command
from spillway.placement.follow import parse_residency
from spillway.placement.journal import AuditRecord, Journal, SwapRecord
from spillway.placement.layout import plan_layout
from spillway.placement.plan import ModelIdentity
from spillway.placement.proof import (
    Asked,
    ExpertSample,
    FollowingProof,
    LayerProof,
    ProofError,
    RankProof,
    SwitchOver,
    TensorProof,
    check_proofs,
    load_proofs,
    require_journals,
    require_proof,
)

MIB = 1 << 20
MODEL = ModelIdentity(config_sha256="0" * 64, experts=8, top_k=2, expert_bytes=2 * (6 + 3) * MIB)
PLAN = choose.given(MODEL, {"a": [1, 4, 6], "b": [], "c": [0]})
RANKS = 2


SWITCH_OVER = SwitchOver(
    rows=128, rows_timed=(64, 128), in_place_s=(0.5, 2.0), staged_s=(1.0, 1.0), copy_s=1.0, host_share=0.3, measured=True
)
FOLLOWS = FollowingProof(
    setting=parse_residency("follow,classes=2", True).setting, classes=2, spare_bytes=48 * MIB, copied_bytes=0
)
UNSTAGED = {"staging_bytes": 0, "switch_over": None, "host_copy_bytes_per_s": None}


def layer(ids):
    tensors, samples = {}, []
    for key, size in (("w13_weight", 6 * MIB), ("w2_weight", 3 * MIB)):
        layout = plan_layout(8, size, ids)
        tensors[key] = TensorProof(experts=8, expert_bytes=size, host_bytes=layout.host_bytes, gpu_bytes=layout.gpu_bytes)
        for expert in (ids[0], 2):
            memory = "host" if expert in ids else "gpu"
            samples.append(ExpertSample(expert=expert, tensor=key, memory=memory, loaded="aa", in_place="aa", staged="aa"))
    return LayerProof(host_experts=ids, backend="TRITON", tensors=tensors, samples=samples)


def proof(rank=0, **changes):
    given = {
        "state": "ready",
        "rank": rank,
        "ranks": RANKS,
        "plan_sha256": PLAN.sha256,
        "engine": "0",
        "device": "a GPU",
        "numa_node": 0,
        "layers": {"a": layer((1, 4, 6)), "c": layer((0,))},
        "host_read_bytes_per_s": 50e9,
        "gpu_read_bytes_per_s": 4e12,
        "host_copy_bytes_per_s": 55e9,
        "staging_bytes": 100 * MIB,
        "switch_over": SWITCH_OVER,
        "largest_graph_rows": 32,
    }
    return RankProof(**given | changes)


def both(**changes):
    return [proof(0), proof(1, **changes)]


def resampled(keep=lambda sample: True, **changes):
    """Layer `a` with some of its samples, changed alike."""
    sound = layer(PLAN.layers["a"])
    samples = [sample.model_copy(update=changes) for sample in sound.samples if keep(sample)]
    return bent(samples=tuple(samples))


def unstaged():
    """Both layers as they are without staging."""
    sound = {name: layer(PLAN.layers[name]) for name in ("a", "c")}
    return UNSTAGED | {
        "layers": {
            name: each.model_copy(update={"samples": tuple(s.model_copy(update={"staged": None}) for s in each.samples)})
            for name, each in sound.items()
        }
    }


def bent(name="a", tensor=None, sample=None, **changes):
    """Layer `a` with a changed field, tensor (w2) or first sample."""
    sound = layer(PLAN.layers[name])
    if tensor:
        changed = sound.tensors["w2_weight"].model_copy(update=tensor)
        changes["tensors"] = sound.tensors | {"w2_weight": changed}
    if sample:
        changes["samples"] = (sound.samples[0].model_copy(update=sample), *sound.samples[1:])
    return {"layers": {"a": layer((1, 4, 6)), "c": layer((0,))} | {name: sound.model_copy(update=changes)}}


def test_a_sound_proof_has_no_faults():
    assert check_proofs(PLAN, both(), RANKS) == []


def test_rounding_is_allowed_exactly_as_far_as_the_layout_needs_it():
    # Of the 3 MiB experts one is odd and two are even: 5 pages for 9 MiB.
    assert layer((1, 4, 6)).tensors["w2_weight"].host_bytes == 10 * MIB
    assert check_proofs(PLAN, both(**bent(tensor={"host_bytes": 9 * MIB})), RANKS)


BENT = {
    "a missing rank": ([proof(0)], "proofs of ranks [0]"),
    "a rank twice": ([proof(0), proof(0)], "proofs of ranks [0, 0]"),
    "another number of ranks": (both(ranks=1), "was one of 1 ranks"),
    "another plan": (both(plan_sha256="f" * 64), "proves plan ffffffffffff"),
    "not yet ready": (both(state="loaded"), "before the engine's first step"),
    "equal read rates": (both(host_read_bytes_per_s=3.9e12), "do not lie in different memories"),
    "no read rate": (both(host_read_bytes_per_s=0.0), "do not lie in different memories"),
    "staging without switch-over": (both(switch_over=None), "no measured switch-over"),
    "a layer missing": (both(layers={"a": layer((1, 4, 6))}), "not placed: ['c']"),
    "a layer too many": (
        both(layers={"a": layer((1, 4, 6)), "b": layer((0,)), "c": layer((0,))}),
        "placed without need: ['b']",
    ),
    "other experts": (both(**bent(host_experts=(1, 4, 7))), "experts [1, 4, 7] on the host"),
    "too little on the host": (both(**bent(tensor={"host_bytes": 0})), "w2_weight: 0 bytes in host memory"),
    "everything on the GPU too": (both(**bent(tensor={"gpu_bytes": 24 * MIB})), "bytes in GPU memory"),
    "experts of another size": (both(**bent(tensor={"expert_bytes": 4 * MIB})), "bytes per expert on each of 2 ranks"),
    "another number of experts": (both(**bent(tensor={"experts": 7})), "w2_weight: 7 experts"),
    "no tensor": (both(**bent(tensors={})), "0 bytes per expert"),
    "no samples": (both(**bent(samples=())), "no host expert was sampled"),
    "a host expert in GPU memory": (both(**bent(sample={"memory": "gpu"})), "expert 1 lies in gpu memory"),
    "other bytes in place": (both(**bent(sample={"in_place": "bb"})), "read in place differs"),
    "other bytes staged": (both(**bent(sample={"staged": "bb"})), "as staged differs"),
    "nothing was loaded": (
        both(**resampled(loaded="0" * 16, in_place="0" * 16, staged="0" * 16)),
        "a: w13_weight: experts [1, 2] are nothing but zeros",
    ),
    "no GPU expert sampled": (
        both(**resampled(lambda sample: sample.memory == "host")),
        "a: w2_weight: no GPU expert was sampled",
    ),
    "nothing read back as staged": (both(**resampled(staged=None)), "a: w2_weight: expert 2 was not read back as staged"),
    "a switch-over without staging": (both(**unstaged() | {"switch_over": SWITCH_OVER}), "no staging buffers"),
    "a guessed switch-over": (
        both(switch_over=SWITCH_OVER.model_copy(update={"rows": 1})),
        "staged from 1 rows on; by the times measured, from 128",
    ),
    "a switch-over without times": (
        both(switch_over=SWITCH_OVER.model_copy(update={"staged_s": ()})),
        "steps of [64, 128] rows were timed 2 times in place and 0 staged",
    ),
    "no such NUMA node": (both(numa_node=-7), "NUMA node -7"),
    "two engines": (both(engine="9"), "ranks differ in engine: {0: '0', 1: '9'}"),
    "two routings": (both(routing="synthetic: uniform_random"), "ranks differ in routing"),
    "one rank follows": (both(following=FOLLOWS), "ranks differ in following"),
    "two backends": (both(**bent(backend="CUTLASS")), "more than one expert backend"),
    "a parameter too many": (both(parameters={"x": 5}), "parameters on the host: ['x']"),
}


@pytest.mark.parametrize("case", BENT)
def test_a_bent_proof_is_found(case):
    proofs, fault = BENT[case]
    found = check_proofs(PLAN, proofs, RANKS)
    assert any(fault in text for text in found), found


FIXED = SWITCH_OVER.model_copy(update={"rows": 48, "measured": False})
ROUTED = "synthetic: 38 experts get 0.05 of picks"
ASKED = {
    "as the plan says": ({}, Asked(), None),
    "static": ({}, Asked(residency="static"), None),
    "follows": ({"following": FOLLOWS}, Asked(residency="follow,classes=2"), None),
    "follows unasked": ({"following": FOLLOWS}, Asked(), r"its experts move \(follow,.*\), asked: static"),
    "does not follow": ({}, Asked(residency="follow"), "its experts stay where they are, asked: follow"),
    "follows otherwise": ({"following": FOLLOWS}, Asked(residency="follow,classes=4"), "asked: follow,classes=4"),
    "staging off": (unstaged(), Asked(stage_rows="off"), None),
    "staging off unasked": (unstaged(), Asked(), "not staged, although that was not switched off"),
    "staged though off": ({}, Asked(stage_rows="off"), "are staged, asked: off"),
    "staged from 48 rows on": ({"switch_over": FIXED}, Asked(stage_rows="48"), None),
    "measured, not 48": ({}, Asked(stage_rows="48"), "staged from 128 rows on, asked: 48"),
    "routed as asked": ({"routing": ROUTED}, Asked(routing=ROUTED), None),
    "routed unasked": ({"routing": ROUTED}, Asked(), f"its picks are {ROUTED}, asked: the model's own"),
    "not routed": ({}, Asked(routing=ROUTED), f"its picks are the model's own, asked: {ROUTED}"),
    "48, not measured": ({"switch_over": FIXED}, Asked(), "from 48 rows on by a setting, asked: as measured"),
}


@pytest.mark.parametrize("case", ASKED)
def test_a_server_that_did_not_what_it_was_asked_for_is_found(case):
    changes, asked, fault = ASKED[case]
    proofs = [proof(rank, **changes) for rank in range(RANKS)]
    assert check_proofs(PLAN, proofs, RANKS) == [], "a sound server, whatever it was asked for"
    found = check_proofs(PLAN, proofs, RANKS, asked)
    assert found == [] if fault is None else len(found) == RANKS and re.search(fault, found[0]), found


def test_parameters_alone_need_no_staging_and_no_switch_over():
    plan = PLAN.model_copy(update={"layers": dict.fromkeys(PLAN.layers, ()), "parameters": ("embed",)})
    alone = {"plan_sha256": plan.sha256, "parameters": {"embed": 4 * MIB}, "layers": {}} | UNSTAGED
    assert check_proofs(plan, [proof(0, **alone), proof(1, **alone)], RANKS, Asked()) == []


def test_a_planned_parameter_must_be_on_the_host():
    plan = PLAN.model_copy(update={"parameters": ("embed",)})
    sound = {"plan_sha256": plan.sha256, "parameters": {"embed": 4 * MIB}}
    assert check_proofs(plan, [proof(0, **sound), proof(1, **sound)], RANKS) == []
    for size in (0, 1):
        (fault,) = check_proofs(plan, [proof(0, **sound), proof(1, **sound | {"parameters": {"embed": size}})], RANKS)
        assert f"embed: {size} bytes on the host, expected whole pages" in fault


def test_proofs_are_files_whose_absence_or_damage_is_an_error(tmp_path):
    with pytest.raises(ProofError, match="no proof of placement"):
        load_proofs(tmp_path)
    for rank in range(RANKS):
        proof(rank).save(tmp_path)
    assert require_proof(PLAN, tmp_path, RANKS) == both()
    with pytest.raises(ProofError, match="faults in the proof"):
        require_proof(choose.given(MODEL, {"a": [1, 4, 6], "b": [1], "c": [0]}), tmp_path, RANKS)


def test_a_server_of_ones_own_is_held_against_its_plan(tmp_path, capsys):
    PLAN.save(tmp_path / "plan.json")
    (tmp_path / "proof").mkdir()
    for rank in range(RANKS):
        proof(rank).save(tmp_path / "proof")
    check = ["check", str(tmp_path / "plan.json"), "--proof", str(tmp_path / "proof"), "--ranks"]
    assert plan_command.main([*check, "2"]) == 0
    assert "rank 1 proves it: 0.04 GiB on the host, 0.11 GiB on the GPU; host pages" in capsys.readouterr().out
    assert plan_command.main([*check, "1"]) == 1
    assert "proofs of ranks [0, 1], expected 0 to 0 once each" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "fault"),
    [("{", "not JSON"), ('{"rank": 1}', "state: Field required"), (None, "colour: Extra inputs")],
    ids=["cut off", "keys missing", "key unknown"],
)
def test_a_proof_that_cannot_be_read_is_named(tmp_path, text, fault):
    for rank in range(RANKS):
        proof(rank).save(tmp_path)
    damaged = tmp_path / "rank1.json"
    damaged.write_text(damaged.read_text().replace('"rank": 1', '"colour": 1, "rank": 1') if text is None else text)
    with pytest.raises(ProofError, match=rf"rank1\.json: .*{fault}"):
        load_proofs(tmp_path)


def test_a_proof_that_cannot_be_written_leaves_the_one_before(tmp_path, monkeypatch):
    proof(0, state="loaded").save(tmp_path)
    write = Path.write_text

    def full(path, text, **options):
        write(path, text[: len(text) // 2], **options)
        raise OSError("no space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="no space"):
        proof(0).save(tmp_path)
    assert load_proofs(tmp_path) == [proof(0, state="loaded")]


# Experts that move


def swapped(up, down, step, outcome="done"):
    return SwapRecord(step=step, t_s=1.0, layer="a", promoted=up, demoted=down, bytes=1, copy_s=0.1, map_s=0.1, outcome=outcome)


def audit(step):
    return AuditRecord(step=step, t_s=1.0, layer="a", tensor="w2_weight", expert=1, memory="gpu", loaded="a", in_place="a")


def journals(folder, first, second):
    for rank, records in enumerate((first, second)):
        journal = Journal(folder, rank)
        for record in records:
            journal.write(record)
    return require_journals(PLAN, [proof(rank, following=FOLLOWS) for rank in range(RANKS)], folder, 2)


def test_plan_and_journals_prove_a_residency_that_moved(tmp_path):
    assert check_proofs(PLAN, [proof(rank, following=FOLLOWS) for rank in range(RANKS)], RANKS) == []
    records = [swapped(1, 3, 4), swapped(4, 2, 5), audit(5), swapped(6, 0, 9)]
    residency = journals(tmp_path, records, records)
    assert residency.host == {"a": {0, 2, 3}, "b": set(), "c": {0}} and residency.swaps == 3
    # A rank that was asked a little earlier has told a little less.
    assert journals(tmp_path, records, records[:-1]).swaps == 3


@pytest.mark.parametrize(
    ("second", "fault"),
    [
        ([swapped(1, 3, 4), swapped(4, 2, 6), audit(6)], "swap 2: rank 1 tells of .*6.*, rank 0 of .*5"),
        ([swapped(1, 3, 4), swapped(4, 0, 5), audit(5)], "swap 2: rank 1"),
        ([swapped(1, 3, 4), swapped(4, 2, 5, "not promoted")], "swap 2: rank 1"),
        ([swapped(1, 3, 4), swapped(4, 2, 5), swapped(6, 0, 9)], "3 swaps but only 0 of them read back"),
        ([swapped(2, 3, 4)], r"journal1.jsonl: record 1: a: expert 2 was promoted"),
    ],
)
def test_ranks_that_moved_other_experts_or_looked_at_none_are_found(tmp_path, second, fault):
    with pytest.raises(ProofError, match=fault):
        journals(tmp_path, [swapped(1, 3, 4), swapped(4, 2, 5), audit(5)], second)


def test_a_missing_journal_is_an_error(tmp_path):
    with pytest.raises(ProofError, match="no journal of swaps"):
        require_journals(PLAN, [proof(0, following=FOLLOWS)], tmp_path, 2)


def test_ranks_that_follow_with_different_settings_are_found(tmp_path):
    for rank in range(RANKS):
        Journal(tmp_path, rank)
    slower = FOLLOWS.model_copy(update={"setting": "follow,classes=2,swaps_per_s=1"})
    with pytest.raises(ProofError, match="ranks follow with different settings"):
        require_journals(PLAN, [proof(0, following=FOLLOWS), proof(1, following=slower)], tmp_path)
