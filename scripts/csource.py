# SPDX-License-Identifier: Apache-2.0
"""What the checks need to know of C sources: files of the project, tokens, declarations of a header.

Not a compiler: it reads the house style of this project, and stops with a message where it can't.
"""

import os
import re
import subprocess
import sys

# The checks' own tests point them at a folder of theirs.
ROOT = os.environ.get("CHECK_ROOT") or os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

_SKIPPED_FOLDERS = {".git", ".venv", ".cache", "__pycache__", "demo-out"}

_LEXEMES = re.compile(
    r"""(?P<comment>/\*.*?\*/|//[^\n]*)
      | (?P<string>"(?:\\.|[^"\\\n])*")
      | (?P<char>'(?:\\.|[^'\\\n])*')
      | (?P<name>[A-Za-z_]\w*)
      | (?P<number>\.?\d(?:[eEpP][+-]|[\w.])*)
      | (?P<space>\s+)
      | (?P<mark>->|.)""",
    re.S | re.X,
)


def project_files():
    """Relative paths of every file that belongs to the project, also those not yet committed."""
    try:
        listed = subprocess.run(
            ["git", "-C", ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            check=True, capture_output=True).stdout.decode().split("\0")
    except (OSError, subprocess.CalledProcessError):
        listed = []
    if not any(listed):  # an unpacked archive, or a folder that git does not trust
        for folder, folders, files in os.walk(ROOT):
            folders[:] = [f for f in folders if f not in _SKIPPED_FOLDERS and not f.startswith("build")]
            listed += [os.path.relpath(os.path.join(folder, f), ROOT) for f in files]
    return sorted(f for f in set(listed) if f and os.path.isfile(os.path.join(ROOT, f)))


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


def tokens(text):
    """(kind, text, line) of every token that is neither a comment nor white space."""
    line = 1
    for match in _LEXEMES.finditer(text):
        kind = match.lastgroup
        if kind not in ("comment", "space"):
            yield kind, match.group(), line
        line += match.group().count("\n")


def shebang(path):
    with open(os.path.join(ROOT, path), "rb") as file:
        first = file.readline(200)
    return first.decode("utf-8", "replace").strip() if first.startswith(b"#!") else ""


def is_shell(path):
    return path.endswith((".sh", ".bash")) or bool(re.search(r"\b(ba|da)?sh$", shebang(path)))


def is_python(path):
    return path.endswith(".py") or "python" in shebang(path)


def comment_text(comment):
    """The words of a C comment, without its frame."""
    body = comment[2:-2] if comment.startswith("/*") else comment[2:]
    lines = [re.sub(r"^\s*\* ?", "", line) if number else line for number, line in enumerate(body.split("\n"))]
    return "\n".join(line.rstrip() for line in lines).strip()


class Item:
    """One thing at the top level of a header: kind is comment, section, define or declaration."""

    def __init__(self, kind, text, comment="", apart=False):
        self.kind = kind
        self.text = text
        self.comment = comment  # what stands right before it
        self.apart = apart  # a blank line stands before it

    def function(self):
        """The name, when this declares a function."""
        if self.kind != "declaration" or re.match(r"(typedef|struct \w+ \{|enum \w+ \{|enum \{)", self.text):
            return None
        code = strip_comments(self.text)
        if "{" in code and not code.startswith("static"):
            return None
        match = re.search(r"\b(\w+)\s*\(", code)
        return match.group(1) if match else None

    def is_static(self):
        return self.text.startswith("static")

    def variable(self):
        """The name, when this declares an object that some library defines."""
        match = re.match(r"extern\b[^({]*?\b(\w+)\s*(\[[^]]*\])?\s*;$", strip_comments(self.text))
        return match.group(1) if match else None


def strip_comments(text):
    return "".join(" " if m.lastgroup == "comment" else m.group() for m in _LEXEMES.finditer(text)).strip()


def header_items(path):
    """(comment of the file, items in order) of a header in the house style."""
    text = read(path)
    text = re.sub(r"#ifdef __cplusplus\n.*?\n#endif\n", "", text, flags=re.S)
    items, at, file_comment, pending, apart = [], 0, None, "", False
    depth, start = 0, None
    while at < len(text):
        match = _LEXEMES.match(text, at)
        kind, word = match.lastgroup, match.group()
        line_start = at == 0 or text[at - 1] == "\n"
        at = match.end()
        if start is not None:  # inside a declaration
            depth += (word in "{(") - (word in "})") if kind == "mark" else 0
            ends = word == ";" and depth == 0
            if word == "}" and depth == 0 and text[start:at].startswith("static"):
                ends = True
            if ends:
                items.append(Item("declaration", text[start:at], pending, apart))
                pending, start, apart = "", None, False
        elif kind == "space":
            if word.count("\n") > 1:
                if pending:
                    items.append(Item("comment", "", pending))
                pending, apart = "", True
        elif kind == "comment":
            words = comment_text(word)
            if words.startswith("SPDX-"):
                continue
            if file_comment is None and not items:
                file_comment = words
                continue
            section = re.fullmatch(r"-{2,}\s*(.*?)\s*-{2,}", words)
            if section:
                items.append(Item("section", section.group(1)))
            else:
                pending = (pending + "\n\n" + words).strip()
        elif word == "#" and line_start:
            end = at
            while True:
                end = text.index("\n", end)
                if text[end - 1] != "\\":
                    break
                end += 1
            line = text[match.start():end]
            at = end
            if line.startswith("#define") and not re.match(r"#define \w+_H$", line):
                items.append(Item("define", line, pending, apart))
                pending, apart = "", False
        else:
            start = match.start()
            depth = 1 if word in "{(" else 0
    if start is not None:
        sys.exit(f"{path}: a declaration does not end: {text[start:start + 60]!r}")
    return file_comment or "", items


def public_headers():
    folder = os.path.join(ROOT, "include", "heft")
    return ["include/heft/" + name for name in sorted(os.listdir(folder)) if name.endswith(".h")]


def finish(name, problems, checked):
    """Ends a check: prints each problem, or what was looked at."""
    for problem in problems:
        print(f"{name}: {problem}")
    if problems:
        sys.exit(f"{name}: {len(problems)} problems")
    print(f"{name}: {checked}")
