"""Numbers as numbers.json holds them, for tests of what is made from it."""

from spillway.paper.content import Content, Value

FILE = "data/cpu/x.y.parquet"


def value(key: str, text: str, *parts: str, unit: str = "", number: float | str = 1.0) -> Value:
    texts = {"en": text, "es": text.replace(".", ",")}
    return Value(key, parts, number, texts, unit, FILE, "ab" * 32, "run", "a = 1", "median of b_s", 3)


def content() -> Content:
    """One number, one ratio of two, groups of one and of two columns, a number of the article, one that is not run."""
    return Content(
        host="cpu",
        data_hash="cd" * 32,
        numbers={
            "tpot": [value("tpot", "7.6", unit="ms", number=7.6)],
            "base": [value("base", "7.0", unit="ms")],
            "growth": [value("growth", "1.09", unit="x")],
            "by": [value("by", "1", "a_1 & b"), value("by", "2", "50%")],
            "arms": [value("arms", "3", "placed", "4"), value("arms", "4", "placed", "8"), value("arms", "5", "uva", "4")],
            "stools": [value("stools", "4")],
        },
        ratios={"growth": ("tpot", "base")},
        only_in={"stools": "article"},
        left_out={"vram": ("cpu", "e9_all_in_vram"), "vram.there": ("h200x2", "e9_all_in_vram")},
        experiments={
            "cpu": {"e1_memory": None, "e9_all_in_vram": "There is no GPU memory on this host."},
            "h200x2": {"e9_all_in_vram": "not recorded on host h200x2 yet"},
        },
    )
