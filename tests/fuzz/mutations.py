"""Bad input made out of good: bytes flipped, cut, doubled and spliced; trees with values and depths that nobody expects."""

import contextlib
import copy
import json
import random
import re
from collections.abc import Callable, Sequence
from typing import Any, Literal

Form = Literal["yaml", "json", "jsonl", "text", "bytes"]

# Stand for texts that no serialiser writes, and are put in their place afterwards.
DEEP, DIGITS, ALIAS, LONG = "@deep@", "@digits@", "@alias@", "@long@"

MOST_BYTES, MOST_NODES = 2 << 20, 5000

ODD_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2, 255, 2**31, 2**53 + 1, 2**63, 2**64, 10**30, 10**400, 0.5, -0.0, 1e308, 5e-324,
    float("nan"), float("inf"), float("-inf"), "", " ", "0", "-1", "1e999", "nan", "true", "null", "\0", "\x1b[2J", "é",
    "\u2028", "\ufeff", "\ud800", "../../x", "/etc/passwd", "$HOME", "; touch x", "x" * 300, [], {}, [[]], [None], {"": None},
    "2026-03-02T10:00:00Z", "2026-03-02T10:00:00", "9999-12-31T23:59:59.999999-23:59", "0001-01-01T00:00:00+23:59",
    DEEP, DIGITS, ALIAS, LONG,
)  # fmt: skip
ODD_BYTES: tuple[bytes, ...] = (
    b"\0", b"\xff", b"\xef\xbb\xbf", b"\xc3", b"\xed\xa0\x80", b"\r", b"\r\n", b"\n", b"\n\n", b"\t", b"\x1b[2J", b"{", b"}",
    b"[", b"]", b'"', b"'", b",", b":", b": ", b"\\u0000", b"\\ud800", b"-", b"- ", b"#", b"&a ", b"*a", b"<<: *a", b"!!int ",
    b"!!timestamp x", b"!!bool x", b"!!binary x", b"!!python/object/apply:os.system ['true']", b"!!set {a}", b"%TAG ! x",
    b"---", b"...", b"? ", b"|", b">", b"1e400", b"-1", b"0", b"9" * 5000, b"1_000", b"0x1", b"1:2:3", b".inf", b".nan", b"NaN",
    b"Infinity", b"null", b"true", b"\xe2\x80\xa8", b"\x7f", b"\xff\xff\xff\xff", b"\0\0\0\x80", b"\xff" * 8, b"\0" * 8,
    b"data:", b"data: ", b"event: error\n", b"data: [DONE]\n\n", b"[DONE]", b'"', b"PAR1",
)  # fmt: skip


def mutated(random: random.Random, content: bytes, others: Sequence[bytes], form: Form) -> bytes:
    """One to a few changes of a sample; `others` are what pieces of it may be replaced by."""
    if form in ("yaml", "json", "jsonl") and random.random() < 0.65:
        changed = _changed_tree(random, content, form)
        if changed is not None and random.random() < 0.8:
            return changed[:MOST_BYTES]
        content = (changed or content)[:MOST_BYTES]
    for _ in range(random.choice((1, 1, 1, 2, 3, 6))):
        content = random.choice(_BYTE_CHANGES)(random, content, others)
        content = content[:MOST_BYTES]
    return content


def _span(random: random.Random, content: bytes) -> tuple[int, int]:
    start = random.randrange(len(content) + 1)
    return start, min(len(content), start + random.choice((1, 2, 4, 8, 16, 64, 256, 4096)))


def _flip(random: random.Random, content: bytes, _: Sequence[bytes]) -> bytes:
    changed = bytearray(content)
    for _ in range(random.choice((1, 1, 2, 8))):
        if changed:
            changed[random.randrange(len(changed))] ^= 1 << random.randrange(8)
    return bytes(changed)


def _insert(random: random.Random, content: bytes, _: Sequence[bytes]) -> bytes:
    start, _end = _span(random, content)
    return content[:start] + random.choice(ODD_BYTES) + content[start:]


def _overwrite(random: random.Random, content: bytes, _: Sequence[bytes]) -> bytes:
    start, _end = _span(random, content)
    odd = random.choice(ODD_BYTES)
    return content[:start] + odd + content[start + len(odd) :]


def _delete(random: random.Random, content: bytes, _: Sequence[bytes]) -> bytes:
    start, end = _span(random, content)
    return content[:start] + content[end:]


def _double(random: random.Random, content: bytes, _: Sequence[bytes]) -> bytes:
    start, end = _span(random, content)
    times = random.choice((1, 1, 2, 10, 1000))
    return content[:end] + content[start:end] * min(times, (1 << 20) // max(1, end - start)) + content[end:]


def _truncate(random: random.Random, content: bytes, _: Sequence[bytes]) -> bytes:
    return content[: random.randrange(len(content) + 1)]


def _splice(random: random.Random, content: bytes, others: Sequence[bytes]) -> bytes:
    other = random.choice(others)
    (start, _), (from_, to) = _span(random, content), _span(random, other)
    return content[:start] + (other[from_:] if random.random() < 0.5 else other[from_:to] + content[start:])


def _lines(random: random.Random, content: bytes, _: Sequence[bytes]) -> bytes:
    lines = content.split(b"\n")
    at = random.randrange(len(lines))
    match random.randrange(5):
        case 0:
            lines.insert(at, lines[at])  # the second of two equal keys, a record written twice
        case 1:
            del lines[at]
        case 2:
            random.shuffle(lines)
        case 3:
            lines[at] = b" " * random.randrange(1, 9) + lines[at]
        case _:
            lines[at] = lines[at] + b" " + b"x" * random.choice((100, 10_000, 200_000))
    return b"\n".join(lines)


def _line_ends(random: random.Random, content: bytes, _: Sequence[bytes]) -> bytes:
    return random.choice((b"", b"\xef\xbb\xbf")) + content.replace(b"\n", random.choice((b"\r\n", b"\r", b"\n\n")))


def _reencode(random: random.Random, content: bytes, _: Sequence[bytes]) -> bytes:
    return content.decode("utf-8", "replace").encode(random.choice(("utf-16", "utf-8-sig", "cp500", "utf-32-le")), "replace")


def _nest(random: random.Random, content: bytes, _: Sequence[bytes]) -> bytes:
    depth = random.choice((50, 900, 3000, 100_000))
    opening, closing = random.choice(((b"[", b"]"), (b'{"a":', b"}"), (b"- ", b""), (b"{a: ", b"}")))
    return opening * depth + (content if random.random() < 0.3 else b"") + closing * depth


_BYTE_CHANGES: tuple[Callable[[random.Random, bytes, Sequence[bytes]], bytes], ...] = (
    _flip, _flip, _insert, _insert, _overwrite, _delete, _delete, _double, _truncate, _splice, _lines, _lines, _line_ends,
    _reencode, _nest,
)  # fmt: skip


def _changed_tree(random: random.Random, content: bytes, form: Form) -> bytes | None:
    """The content with a few nodes of its tree changed; None if it is no tree any more."""
    lines = content.split(b"\n") if form == "jsonl" else [content]
    full = [at for at, line in enumerate(lines) if line.strip()]
    if not full:
        return None
    for at in random.sample(full, min(len(full), random.choice((1, 1, 2, 3)))):
        try:
            tree = _parsed(lines[at], form)
        except (ValueError, RecursionError, TypeError):
            return None
        try:
            for _ in range(random.choice((1, 1, 1, 2, 4))):
                tree = _changed(random, tree)
            lines[at] = _written(random, tree, form)
        except (ValueError, RecursionError, OverflowError, TypeError):  # deeper, or a larger number, than Python writes
            return None
    return b"\n".join(lines)


def _parsed(text: bytes, form: Form) -> Any:
    if form != "yaml":
        return json.loads(text)
    import yaml

    try:
        return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (yaml.YAMLError, AttributeError, LookupError, OverflowError) as error:
        raise ValueError(str(error)) from None


def _paths(tree: Any) -> list[tuple[Any, ...]]:
    """The way to every node; raises ValueError for more than MOST_NODES, as aliases of aliases make."""
    found: list[tuple[Any, ...]] = []
    ahead: list[tuple[tuple[Any, ...], Any]] = [((), tree)]
    while ahead:
        path, node = ahead.pop()
        found.append(path)
        if len(found) > MOST_NODES:
            raise ValueError("too many nodes")
        items = node.items() if isinstance(node, dict) else enumerate(node[:50]) if isinstance(node, list) else ()
        ahead += [((*path, key), value) for key, value in items]
    return found


def _changed(random: random.Random, tree: Any) -> Any:
    path = random.choice(_paths(tree))
    if not path:
        return _odd(random, tree) if random.random() < 0.2 else tree
    above = tree
    for key in path[:-1]:
        above = above[key]
    key = path[-1]
    match random.randrange(6):
        case 0:
            del above[key]
        case 1 if isinstance(above, dict):
            name = random.choice((f"{key}x", "", "<<", "__proto__", "\x1b[31m", "x" * 200, str(key).upper(), 7, None, True))
            above[name] = above.pop(key)
        case 1:
            above.insert(key, above[key])
        case 2 if isinstance(above, list):
            above.extend(above[:20] * random.choice((1, 1, 10, 100)))
        case 2:
            above[key] = [above[key]]
        case 3:
            above[key] = {"a": above[key]}
        case 4 if isinstance(above[key], int | float) and not isinstance(above[key], bool):
            number = above[key]
            above[key] = random.choice((-number, number + 1, number * 10**6, number * 10**18, 0.5, str(number)[:99], [number]))
        case _:
            above[key] = _odd(random, above[key])
    return tree


def _odd(random: random.Random, value: Any) -> Any:
    return copy.deepcopy(random.choice((*ODD_VALUES, [value] * 3, {"x": value}, str(value)[:MOST_BYTES])))


def _written(random: random.Random, tree: Any, form: Form) -> bytes:
    text = json.dumps(tree, skipkeys=True, ensure_ascii=random.random() < 0.5)
    if form == "yaml" and random.random() < 0.5:
        import yaml

        with contextlib.suppress(yaml.YAMLError, UnicodeEncodeError):
            text = yaml.safe_dump(tree, allow_unicode=True)
    if random.random() < 0.1:  # a key that stands twice
        text = re.sub(r'("[a-z_]+": ?[0-9]+)', r"\1, \1", text, count=1)
    text = re.sub(f"[\"']?{DEEP}[\"']?", lambda _: _deep(random), text, count=2)
    text = re.sub(f"[\"']?{DIGITS}[\"']?", "9" * random.choice((19, 400, 4299, 5000, 100_000)), text, count=3)
    text = text.replace(LONG, "x" * random.choice((1000, 1000, 100_000)), 3)
    if ALIAS in text:
        text = re.sub(f"[\"']?{ALIAS}[\"']?", "*z9" if form == "yaml" else "{}", text)
        text = ("" if form != "yaml" else _bomb(random)) + text
    return text.encode("utf-8", "surrogatepass")


def _deep(random: random.Random) -> str:
    depth = random.choice((20, 500, 2000, 50_000))
    return "[" * depth + "]" * depth if random.random() < 0.5 else '{"a":' * depth + "1" + "}" * depth


def _bomb(random: random.Random) -> str:
    """Anchors whose every level doubles the one before: as lists, or merged into mappings."""
    levels = random.choice((3, 10, 24))
    if random.random() < 0.5:
        body = ", ".join(f"&z{n} [{f'*z{n - 1}, *z{n - 1}' if n else 'x'}]" for n in range(levels))
    else:
        body = ", ".join(f"&z{n} {{{f'<<: [*z{n - 1}, *z{n - 1}]' if n else 'x: 1'}}}" for n in range(levels))
    return f"zz: [{body}, &z9 [1]]\n" if random.random() < 0.8 else "zz: &z9 [*z9]\n"
