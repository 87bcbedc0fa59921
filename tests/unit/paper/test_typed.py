"""Numbers typed into a template are found; what LaTeX reads as names and lengths is not mistaken for them."""

import pytest

from spillway.paper.typed import typed_in_figures, typed_numbers


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("It takes 7.6 ms.", ["7.6"]),
        (r"\caption{At 4K tokens}", ["4K"]),
        ("two lines\nand 1,234 tokens", ["1,234"]),
        (r"$10^{3}$ and 48\,\%", ["10", "3", "48"]),
        (r"\VAR{ n('tpot.4k') } ms", []),
        (r"\BLOCK{ for x in groups('by4') } \VAR{ n('by4', x) } \BLOCK{ endfor }", []),
        ("% 12 in a comment\nnext", []),
        (r"100\% sure", ["100"]),
        (r"\ref{fig1} \label{sec:2} \includegraphics[width=0.9\linewidth]{build/fig2.pdf} \vspace{2mm}", []),
        (r"on an H200 and an A100", ["A100"]),
        (r"H2001", ["H2001"]),
        (r"\VAR{ '7.6' }", ["7.6"]),
        (r"\VAR{ 7.6 }", ["7.6"]),
        (r"\VAR{ n('a') ~ ' of 9' }", ["9"]),
        (r"\VAR{ n('a') ~ (' of 9') }", ["9"]),
        (r"\VAR{ n('seats.clock', 'binomial (2 states)') } \VAR{ why_not('e9_all') }", []),
        (r"\BLOCK{ set x = 7 }\VAR{ x }", ["7"]),
        (r"\BLOCK{ for x in ['8'] }\VAR{ x }\BLOCK{ endfor }", ["8"]),
        (r"\BLOCK{ if raw('gpus') == 0 }none\BLOCK{ endif }", []),
        (r"\begin{tabular}{p{3cm}r} 5 \end{tabular}", ["5"]),
    ],
)
def test_scan(text: str, found: list[str]) -> None:
    assert [token for _, token in typed_numbers(text, {"H200"})] == found


def test_the_line_is_right_after_blocks_that_span_lines() -> None:
    assert list(typed_numbers("\\#{ a\ncomment 3\n}\nhere 7", set())) == [(4, "7")]


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("axes.set_title('At 7.6 ms')", ["7.6"]),
        ("axes.annotate(f'{x:.1f} of 59', (0.5, 2))", ["59"]),
        ("axes.text(1, 2, f'{7.6:.1f} ms')", ["7.6"]),
        ("axes.text(1, 2, '7.6')", ["7.6"]),
        ("axes.axhline(59, color='#1b3a5c')", ["59"]),
        ("axes.plot([1, 2, -4], rows['ttft_s'])", ["2", "4"]),
        ("axes.axhline(0); axes.axhline(float(published['agents.floor']), linewidth=0.7)", []),
        ("rows = frames['e13_agents.requests'][['p5_tok_per_s']]", []),
        ("axes.plot(x, y * 1e3, '--', label='on an H200', markersize=4)", []),
        ("def draw():\n    'Median of 7 requests.'\n    axes.set_xlabel(f'{value:,.2f} s')", []),
    ],
)
def test_scan_of_figures(code: str, found: list[str]) -> None:
    assert [token for _, token in typed_in_figures(code, {"H200"})] == found
