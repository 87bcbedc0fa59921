"""Numbers typed into a template are found; what LaTeX reads as names and lengths is not mistaken for them."""

import pytest

from spillway.paper.typed import typed_numbers


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
