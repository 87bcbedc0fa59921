"""The synthetic router on a GPU: the chosen share, distinct picks, the same picks whatever is on the host."""

import pytest

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]


@pytest.mark.parametrize("share", [0.0, 0.05, 0.296875, 1.0])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_picks_have_the_share_and_are_distinct(share, dtype):
    from spillway.placement.pick import pick_experts
    from spillway.placement.routing import SyntheticRouting

    torch.manual_seed(0)
    logits = (torch.randn(20000, 128, device="cuda") * 2e-5).to(dtype)
    unpopular = torch.zeros(128, dtype=torch.int32, device="cuda")
    unpopular[list(SyntheticRouting(38, share).experts(128))] = 1
    at = torch.tensor([share], device="cuda")
    weights, ids = pick_experts(logits, unpopular, at, 8, torch.int32)
    assert ids.dtype == torch.int32 and int(ids.min()) >= 0 and int(ids.max()) < 128
    assert not (ids.sort(-1).values.diff(dim=-1) == 0).any(), "an expert was picked twice by one row"
    assert torch.allclose(weights.sum(-1), torch.ones(20000, device="cuda"), atol=1e-5)
    # 160,000 picks: four standard deviations of a share of 0.3 are 0.0046.
    assert abs(unpopular[ids.long()].float().mean().item() - share) < 0.0046
    again = pick_experts(logits, unpopular, at, 8, torch.int32)[1]
    assert torch.equal(ids, again)


def test_the_share_can_change_under_a_captured_graph():
    from spillway.placement.pick import pick_experts

    logits = torch.randn(4000, 128, device="cuda")
    unpopular = (torch.arange(128, device="cuda") < 38).to(torch.int32)
    share = torch.tensor([0.05], device="cuda")
    pick_experts(logits, unpopular, share, 8)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        _, ids = pick_experts(logits, unpopular, share, 8)
    found = []
    for wanted in (0.05, 0.5):
        share.fill_(wanted)
        graph.replay()
        found.append((ids < 38).float().mean().item())
    assert abs(found[0] - 0.05) < 0.01 and abs(found[1] - 0.5) < 0.02
