#!/usr/bin/env python3
"""Writes the file tree into docs/architecture.md; with --check, verifies it and every `file.rs::function` that docs and CONTRIBUTING.md name."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/architecture.md"
BEGIN, END = "<!-- tree: written by docs/tree.py -->", "<!-- tree: end -->"


def layers():
    """The folders of src, from the top layer down, as the table in src/lib.rs has them."""
    table = re.search(r"//! ```text\n(.*?)//! ```", (ROOT / "src/lib.rs").read_text(), re.S).group(1)
    return table.replace("//!", "").split()


def summary(path):
    """The first sentence of a file's `//!` doc."""
    lines = []
    for line in path.read_text().splitlines():
        text = line.removeprefix("//!").strip()
        if not line.startswith("//!") or not text:
            break
        lines.append(text)
    sentence = re.match(r".*?[.?](?= [A-Z]|$)|.*", " ".join(lines)).group(0)
    return re.sub(r"\[(`[^`]*`)\]", r"\1", sentence)


def tree():
    """One table for each folder."""
    out = []
    for layer in layers():
        own = ROOT / f"src/{layer}.rs"
        files = [own] if own.exists() else sorted((ROOT / "src" / layer).rglob("*.rs"))
        rows = [
            f"| `{path.relative_to(ROOT / 'src')}` | {summary(path)} |"
            for path in files
            if "tests" not in path.relative_to(ROOT).parts
        ]
        out += ["", f"### {layer}", "", "| file | purpose |", "| --- | --- |", *rows]
    return "\n".join(out[1:])


def unknown():
    """The layers, files and functions that are named and not there."""
    table = re.search(r"## Layers.*?```text\n(.*?)```", PAGE.read_text(), re.S).group(1)
    named = " ".join(re.split(r" {2,}(?=[^ ]+ [^ ])", line)[0] for line in table.splitlines()).split()
    wrong = [f"architecture.md: the layers are not those of src/lib.rs: {sorted(set(named) ^ set(layers()))}"] if named != layers() else []
    for page in [*sorted((ROOT / "docs").glob("*.md")), *ROOT.glob("CONTRIBUTING.md")]:
        for name, item in re.findall(r"`(?:src/)?([a-z0-9_/]+\.rs)(?:::([A-Za-z0-9_]+))?`", page.read_text()):
            path = next((p for p in (ROOT / "src" / name, ROOT / name) if p.exists()), None)
            if path is None:
                wrong.append(f"{page.name}: there is no {name}")
            elif item and not re.search(rf"\b(fn|struct|enum|trait|macro_rules!|const|static) {item}\b", path.read_text()):
                wrong.append(f"{page.name}: there is no {item} in {name}")
    return wrong


text = PAGE.read_text()
before, rest = text.split(BEGIN)
written = f"{before}{BEGIN}\n\n{tree()}\n\n{END}{rest.split(END)[1]}"
if "--check" not in sys.argv:
    PAGE.write_text(written)
elif written != text:
    print("docs/architecture.md: the tree is not that of src; run docs/tree.py", file=sys.stderr)
    sys.exit(1)
if wrong := unknown():
    print(*wrong, sep="\n", file=sys.stderr)
    sys.exit(1)
