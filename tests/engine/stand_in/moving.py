"""Experts that change places while one rank serves, on the stand-ins: `moving.py FOLDER CASE`; prints one JSON object.

Cases that only move take how many swaps to make and, to make very many, how many boundaries between steps to a step (1).
"""

import json
import os
import random
import sys
import time
import types
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
import install
import random_swaps
import torch

Namespace = types.SimpleNamespace
folder, case = Path(sys.argv[1]), sys.argv[2]
host_copy = case.startswith("host copy")
config, vllm_config = install.settings(3)
install.install(config, vllm_config)
driver = install.driver

from spillway.placement import choose, follow, journal, plan, proof, swap  # noqa: E402

model, layers = plan.identify_model(config), plan.moe_layers(config)
chosen = choose.given(model, dict(zip(layers, ([1, 2, 5], [0, 7], [3, 4, 6, 7]), strict=True)))
chosen.save(folder / "plan.json")
following = follow.Following(
    decide_steps=2, swaps_per_step=2, classes=1 if case.endswith("unstaged") else 4, host_copy=int(host_copy)
)
os.environ |= {
    "SPILLWAY_PLAN": str(folder / "plan.json"),
    "SPILLWAY_PROOF_DIR": str(folder / "proof"),
    "SPILLWAY_RESIDENCY": following.setting,
    "SPILLWAY_HOST_MEMORY_BYTES": str(1 << 40),
}
if case.endswith("unstaged"):
    os.environ["SPILLWAY_STAGE_ROWS"] = "off"

from spillway.placement.boundary import after_loading, before_each_step  # noqa: E402
from spillway.placement.routed_experts import (  # noqa: E402
    PlacedRoutedExperts,
    before_step,
    counter,
    model_is_loaded,
    placement,
)

for _ in range(2):
    after_loading(model_is_loaded)
    before_each_step("residency", before_step)
worker = install.Worker()
torch.manual_seed(0)
ours: list[PlacedRoutedExperts] = []
plain = [install.RoutedExperts(name) for name in layers]


def load():
    ours.extend(PlacedRoutedExperts(name) for name in layers)
    install.load_alike(ours, plain)
    for layer in ours:
        layer.quant_method.process_weights_after_loading(layer)


worker.load_model(load=load)

# Four rows that pick each expert once, so that a wrong byte anywhere shows.
x, weights = torch.randn(4, install.HIDDEN).bfloat16(), torch.rand(4, install.TOP_K)
picks = torch.arange(8, dtype=torch.int32).view(4, 2)
due = [layer.forward_modular(x, weights, picks) for layer in plain]


steps_run = 0


def step(rows=4):
    """One step of the engine; whether every layer's output is the unplaced model's."""
    placed = placement().ready
    run = lambda: [layer.forward_modular(x, weights, picks) for layer in ours]  # noqa: E731
    global steps_run
    steps_run += placed
    found = worker.execute_model(Namespace(total_num_scheduled_tokens=rows, run=run))
    return placed, all(bool(torch.equal(a, b)) for a, b in zip(found, due, strict=True))


def stage_from(rows):
    placement().switch_over = None if rows is None else placement().switch_over.model_copy(update={"rows": rows})


def all_bytes_right():
    """Every expert as each view reads it, and the memory that the driver says it lies in."""
    right = []
    for layer, other in zip(ours, plain, strict=True):
        placed = layer._placed
        if placement().staging is not None:
            placement().staging.begin(placed.index)
        for key, tensor in placed.tensors.items():
            right.append(bool(torch.equal(getattr(layer, key), getattr(other, key))))
            if tensor.staged is not None:
                right.append(bool(torch.equal(tensor.staged, getattr(other, key))))
        if placement().staging is not None:
            placement().staging.end(placed.index)
        on_host = placement().follower.on_host[placed.index]
        for key in placed.tensors:
            for e in range(install.EXPERTS):
                memory = placement().pages.memory_at(getattr(layer, key)[e].data_ptr())
                right.append((memory == "host") == bool(on_host[e]))
    return all(right)


step()
settled = placement().switch_over
stage_from(None)
step()
follower = placement().follower
assert follower is not None
follower.stages = lambda rows: rows >= 70
generator = random.Random(1)


def check_journal():
    return proof.require_journals(chosen, proof.require_proof(chosen, folder / "proof", 1), folder / "proof")


result: dict[str, object] = {}
if case in ("moves", "moves unstaged", "host copy", "host copy unstaged"):
    wanted, boundaries = int(sys.argv[3]), int(sys.argv[4]) if len(sys.argv) > 4 else 1
    random_swaps.feed(follower, generator, 2)
    slots, memory, units = follower.spare_slots(), dict(driver.left), len(driver.mapped)
    equal, count = True, 0
    while follower.swaps_done < wanted:
        count += 1
        if count % boundaries:
            follower.before_step(4)
            continue
        if count % 25 == 0 and settled is not None:
            # A large step: staged, and nothing may move before it.
            placement().switch_over = settled.model_copy(update={"rows": 1})
            before = follower.swaps_done
            equal &= step(70)[1] and follower.swaps_done == before
            stage_from(None)
        equal &= step()[1]
    random_swaps.rest(follower)
    for _ in range(5):
        equal &= step()[1]
    residency = check_journal()
    result = {
        "equal": equal,
        "bytes": all_bytes_right(),
        "slots": [slots, follower.spare_slots()],
        "memory": [memory, driver.left],
        "mapped": [units, len(driver.mapped)],
        "swaps": [follower.swaps_done, residency.swaps],
        "moved": any(set(chosen.layers[name]) != ids for name, ids in residency.host.items()),
        "as journal": all(
            {e for e in range(install.EXPERTS) if follower.on_host[row][e]} == residency.host[name]
            for row, name in enumerate(layers)
        ),
        "per layer": [len(residency.host[name]) for name in layers],
        "audits": sum(isinstance(r, journal.AuditRecord) for r in residency.records),
        "stages": settled is not None,
        # The four rows of each step pick every expert once.
        "reads": [int(counter().reads().min()), int(counter().reads().max()), counter().steps(), steps_run],
    }
elif case in ("failures", "host copy failures"):
    records: list[object] = []
    follower._journal = Namespace(write=records.append)
    queue: list[swap.Swap] = []
    follower.agree = lambda proposal: [swap.Proposal(proposal.failure, tuple(queue.pop() for _ in queue[:1]))]
    equal, right, outcomes, names, stopped = True, True, [], [], 0
    call = 0
    while True:
        # The boundaries of one swap, with one driver call of it refused.
        queue[:] = [*random_swaps.draw_swaps(follower, generator, 1)]
        records.clear()
        driver.calls.clear()
        driver.refuse = {call}
        ended = []
        for _ in range(8):
            # A failed move is looked at before the next decision ends following.
            moves = list(follower.moving)
            follower.before_step(4)
            failed = [m for m in moves if m not in follower.moving]
            ended += failed
        driver.refuse = set()
        reached = len(driver.calls)
        if reached <= call:
            break
        names.append(driver.calls[call])
        equal &= step()[1]
        right &= all_bytes_right()
        (record,) = [r for r in records if isinstance(r, journal.SwapRecord)]
        outcomes.append(record.outcome)
        stopped += follower.stopped is not None and any(isinstance(r, journal.EndRecord) for r in records)
        # What was left is so sound that the swap can be taken up again.
        follower.stopped = follower._failure = follower._ending = None
        if record.outcome == "not demoted":
            (move,) = ended
            follower.moving.append(move)
            if host_copy:
                follower._demote(move)
            else:
                follower._send_back(move)
                follower._land()
        equal &= step()[1]
        call += 1
    result = {
        "equal": equal, "bytes": right and all_bytes_right(), "outcomes": outcomes, "calls": names, "stopped": stopped,
        "slots": follower.spare_slots(),
    }  # fmt: skip
elif case == "hole":
    queue = [*random_swaps.draw_swaps(follower, generator, 1)]
    follower.agree = lambda proposal: [swap.Proposal(proposal.failure, tuple(queue.pop() for _ in queue[:1]))]
    follower.before_step(4)
    follower.before_step(4)
    driver.calls.clear()
    driver.refuse = set(range(4, 100))
    try:
        for _ in range(3):
            follower.before_step(4)
    except RuntimeError as error:
        result = {"error": f"{type(error).__name__}: {error}"}
elif case == "two ranks":
    # Another process is the other rank; both bring what they propose to the same decisions, rank 1 nonsense.
    from multiprocessing.connection import Client, Listener

    rank, door = int(sys.argv[3]), str(folder.parent / "door")
    if rank == 0:
        with Listener(door) as listener:
            (folder.parent / "open").touch()
            other = listener.accept()
    else:
        while not (folder.parent / "open").exists():
            time.sleep(0.01)
        other = Client(door)

    def agree(proposal):
        mine = swap.Proposal(proposal.failure, tuple(random_swaps.draw_swaps(follower, generator, 2)))
        other.send((mine.failure, [(s.layer, s.promote, s.demote) for s in mine.swaps]))
        failure, swaps = other.recv()
        theirs = swap.Proposal(failure, tuple(swap.Swap(*each) for each in swaps))
        return [mine, theirs] if rank == 0 else [theirs, mine]

    generator = random.Random(rank)
    follower.agree = agree
    driver.calls.clear()
    equal = True
    for number in range(30):
        if rank == 1 and number == 20:
            driver.refuse = {len(driver.calls) + 9}
        equal &= step()[1]
    result = {
        "equal": equal, "bytes": all_bytes_right(), "stopped": follower.stopped, "steps": follower.step,
        "moved": [
            [r.step, r.layer, r.promoted, r.demoted, r.outcome]
            for r in journal.load_journal(journal.journal_path(folder / "proof", 0))
            if r.kind == "swap"
        ],
    }  # fmt: skip
elif case == "ranks":
    # Another rank says that it failed: this one finishes what moves, and stops.
    queue = [*random_swaps.draw_swaps(follower, generator, 1)]
    follower.agree = lambda proposal: [swap.Proposal(None, tuple(queue.pop() for _ in queue[:1]))]
    while not follower.moving:
        follower.before_step(4)
    follower.agree = lambda proposal: [proposal, swap.Proposal("no such page", ())]
    for _ in range(6):
        follower.before_step(4)
    before = follower.step
    result = {
        "stopped": follower.stopped, "moving": len(follower.moving), "swaps": follower.swaps_done,
        "last": check_journal().records[-1].kind, "bytes": all_bytes_right(),
    }  # fmt: skip
print(json.dumps(result))
