"""The checker of proofs: a sound proof passes, and every way of bending one is found."""

import pytest

from spillway.placement import choose
from spillway.placement.journal import AuditRecord, Journal, SwapRecord
from spillway.placement.layout import plan_layout
from spillway.placement.plan import ModelIdentity
from spillway.placement.proof import (
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
        "switch_over": SwitchOver(
            rows=64, rows_timed=(64,), in_place_s=(2.0,), staged_s=(1.0,), copy_s=1.0, host_share=0.3, measured=True
        ),
        "largest_graph_rows": 32,
    }
    return RankProof(**given | changes)


def both(**changes):
    return [proof(0), proof(1, **changes)]


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
    "not yet ready": (both(state="loaded"), "before the first large step"),
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
    "two backends": (both(**bent(backend="CUTLASS")), "more than one expert backend"),
    "a parameter too many": (both(parameters={"x": 5}), "parameters on the host: ['x']"),
}


@pytest.mark.parametrize("case", BENT)
def test_a_bent_proof_is_found(case):
    proofs, fault = BENT[case]
    found = check_proofs(PLAN, proofs, RANKS)
    assert any(fault in text for text in found), found


def test_a_planned_parameter_must_be_on_the_host():
    plan = PLAN.model_copy(update={"parameters": ("embed",)})
    sound = {"plan_sha256": plan.sha256, "parameters": {"embed": 4 * MIB}}
    assert check_proofs(plan, [proof(0, **sound), proof(1, **sound)], RANKS) == []
    assert check_proofs(plan, [proof(0, **sound), proof(1, **sound | {"parameters": {"embed": 0}})], RANKS)


def test_proofs_are_files_whose_absence_or_damage_is_an_error(tmp_path):
    with pytest.raises(ProofError, match="no proof of placement"):
        load_proofs(tmp_path)
    for rank in range(RANKS):
        proof(rank).save(tmp_path)
    assert require_proof(PLAN, tmp_path, RANKS) == both()
    with pytest.raises(ProofError, match="faults in the proof"):
        require_proof(choose.given(MODEL, {"a": [1, 4, 6], "b": [1], "c": [0]}), tmp_path, RANKS)


# Experts that move


FOLLOWS = FollowingProof(setting="follow,classes=2", classes=2, spare_bytes=48 * MIB, copied_bytes=0)


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
