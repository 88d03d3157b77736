#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The checks in scripts/ refuse what they are for: each is given a small tree with one fault, then without it."""

import os
import subprocess
import sys
import tempfile

SCRIPTS = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "scripts")
sys.path.insert(0, SCRIPTS)

from testcount import count_program  # noqa: E402

SPDX = "/* SPDX-License-Identifier: Apache-2.0 */\n"
GUARD = "#ifdef __cplusplus\nextern \"C\" {\n#endif\n"
END = "#ifdef __cplusplus\n}\n#endif\n"

# (what is shown, check, files, words of the complaint or None when the check must be content)
CASES = [
    ("a lower layer is refused", "check-includes",
     {"src/base/a.c": '#include "load/b.h"\n', "src/load/b.h": ""}, "stands below"),
    ("a higher layer is allowed", "check-includes",
     {"src/load/a.c": '#include "base/b.h"\n#include "c.h"\n', "src/base/b.h": "", "src/load/c.h": ""}, None),
    ("a transport does not see its neighbour", "check-includes",
     {"src/transport/tcp/a.c": '#include "transport/local/b.h"\n', "src/transport/local/b.h": ""}, "neighbour"),
    ("a transport sees the root of transport", "check-includes",
     {"src/transport/tcp/a.c": '#include "transport/b.h"\n', "src/transport/b.h": ""}, None),
    ("chaos sees its neighbours", "check-includes",
     {"src/transport/chaos/a.c": '#include "transport/tcp/b.h"\n', "src/transport/tcp/b.h": ""}, None),
    ("a private header is no public one's", "check-includes", {"include/heft/a.h": '#include "base/b.h"\n'}, "<> only"),
    ("an include that leads nowhere", "check-includes", {"src/base/a.c": '#include "gone.h"\n'}, "no such file"),
    ("a banned call", "check-banned", {"src/a.c": "void f(char *a) { strcpy(a, \"x\"); }\n"}, "strcpy"),
    ("a banned call over two lines", "check-banned", {"src/a.c": "int f(void) { return rand\n(); }\n"}, "rand"),
    ("a banned builtin", "check-banned", {"src/a.c": "void *f(void) { return __builtin_alloca(8); }\n"}, "alloca"),
    ("banned names in words are words", "check-banned",
     {"src/a.c": "/* strcpy(a, b) */\nconst char *s = \"atoi(\\\"1\\\")\"; // rand()\nint f(struct s *s) { return s->rand(); }\n"},
     None),
    ("no SPDX line", "check-sources", {"src/a.c": "int a;\n"}, "SPDX"),
    ("a long file", "check-sources", {"src/a.c": SPDX + "int a;\n" * 1000}, "over 1000"),
    ("a path of one machine", "check-sources", {"docs/a.md": "see /" + "root/x\n"}, "one machine"),
    ("an open end", "check-sources", {"src/a.c": SPDX + "/* TO" + "DO: later */\n"}, "open end"),
    ("white space at the end", "check-sources", {"src/a.c": SPDX + "int a; \n"}, "white space"),
    ("a clean file", "check-sources", {"src/a.c": SPDX + "int a;\n"}, None),
    ("a dead link", "check-links", {"a.md": "[b](b.md)\n"}, "no such file"),
    ("a dead anchor", "check-links", {"a.md": "# One\n[b](#two)\n"}, "no such heading"),
    ("living links", "check-links", {"a.md": "# One `x`\n[b](b.md#two-three)\n[a](#one-x)\n`[no](link)`\n", "b.md": "## Two, three\n"},
     None),
    ("a header that needs another one", "check-headers", {"include/heft/a.h": "uint8_t *f(void);\n"}, "does not compile"),
    ("a header that is no C++", "check-headers", {"include/heft/a.h": "struct a { int class; };\n"}, "c++17"),
    ("a header that stands alone", "check-headers",
     {"include/heft/a.h": "#ifndef A_H\n#define A_H\n" + GUARD + "int f(void);\n" + END + "#endif\n"}, None),
]

# What the library below exports and what a header declares: (shown, header, map, complaint)
EXPORTS = [
    ("exports as declared", "int heft_a(void);\nextern const int heft_b;\n", "HEFT_1 { global: heft_a; heft_b; local: *; };", None),
    ("a declaration that is not exported", "int heft_a(void);\nextern const int heft_b;\n",
     "HEFT_1 { global: heft_a; local: *; };", "heft_b: declared in"),
    ("an export that is not declared", "int heft_a(void);\n", "HEFT_1 { global: heft_a; heft_b; local: *; };",
     "declared in no public header"),
    ("an export without a version", "int heft_a(void);\nextern const int heft_b;\n", None, "without a version"),
]

COUNTS = [
    ("cmocka's tests are counted one by one", "[==========] Running 2 test(s).\n[ RUN      ] a\n[       OK ] a\n"
     "[ RUN      ] b\n[       OK ] b\n[  PASSED  ] 2 test(s).\n", "", 0, "2 passed, 0 failed"),
    ("a failure on stderr is found", "[==========] Running 2 test(s).\n[ RUN      ] a\n[ RUN      ] b\n[       OK ] b\n",
     "[  FAILED  ] a\n[  FAILED  ] 1 test(s), listed below:\n[  FAILED  ] a\n", 1, "1 passed, 1 failed"),
    ("a crash after passed tests fails", "[==========] Running 2 test(s).\n[ RUN      ] a\n[       OK ] a\n[ RUN      ] b\n",
     "", -11, "1 passed, 1 failed"),
    ("a sanitizer's exit code fails", "[==========] Running 1 test(s).\n[ RUN      ] a\n[       OK ] a\n[  PASSED  ] 1 test(s).\n",
     "", 23, "1 passed, 1 failed"),
    ("a skipped test is counted", "[==========] Running 1 test(s).\n[ RUN      ] a\nno disk\n[  SKIPPED ] a\n", "", 0,
     "0 passed, 0 failed, 1 skipped"),
    ("the other tests of a program with a skip", "[==========] Running 2 test(s).\n[ RUN      ] a\n[  SKIPPED ] no disk\n"
     "[  SKIPPED ] a\n[ RUN      ] b\n[       OK ] b\n", "", 0, "1 passed, 0 failed, 1 skipped"),
    ("a script's own count is taken", "x\n3 passed, 0 failed, 1 skipped\n", "", 0, "3 passed, 0 failed, 1 skipped"),
    ("a script that says 0 failed and fails", "3 passed, 0 failed\n", "", 1, "3 passed, 1 failed"),
    ("any other program is one test", "fine\n", "", 0, "1 passed, 0 failed"),
    ("any other program that fails", "", "", 2, "0 passed, 1 failed"),
    ("exit code 77 is a skip", "no GPU here\n", "", 77, "0 passed, 0 failed, 1 skipped"),
]


def write(folder, files):
    for path, text in files.items():
        os.makedirs(os.path.dirname(os.path.join(folder, path)), exist_ok=True)
        with open(os.path.join(folder, path), "w", encoding="utf-8") as file:
            file.write(text)


def verdict(folder, check, *arguments):
    done = subprocess.run([os.path.join(SCRIPTS, check), *arguments], capture_output=True, text=True, check=False,
                          env={**os.environ, "CHECK_ROOT": folder})
    return done.returncode, done.stdout + done.stderr


def judge(code, text, complaint):
    """None when the verdict is the wanted one."""
    if complaint is None:
        return None if code == 0 else f"refused: {text}"
    return None if code and complaint in text else f"exit {code}, wanted {complaint!r}: {text}"


def run_check(check, files, complaint):
    with tempfile.TemporaryDirectory() as folder:
        write(folder, files)
        return judge(*verdict(folder, check), complaint)


def run_exports(header, version_map, complaint):
    with tempfile.TemporaryDirectory() as folder:
        write(folder, {"include/heft/a.h": header, "a.c": "int heft_a(void) { return 1; }\nconst int heft_b = 1;\n",
                       "a.map": version_map or ""})
        out = os.path.join(folder, "build", "libheft.so")
        os.makedirs(os.path.dirname(out))
        link = [f"-Wl,--version-script={folder}/a.map"] if version_map else []
        subprocess.run(["gcc", "-shared", "-fPIC", "-o", out, os.path.join(folder, "a.c"), *link], check=True)
        return judge(*verdict(folder, "check-exports", os.path.join(folder, "build")), complaint)


def run_count(stdout, stderr, code, wanted):
    line = count_program("t", stdout, stderr, code).line()
    return None if line == wanted else f"{line!r}, wanted {wanted!r}"


def main():
    results = [(f"{check}: {shown}", run_check(check, files, complaint)) for shown, check, files, complaint in CASES]
    results += [(f"check-exports: {shown}", run_exports(*case)) for shown, *case in EXPORTS]
    results += [(f"counting: {shown}", run_count(*case)) for shown, *case in COUNTS]
    failed = [(name, why) for name, why in results if why]
    for name, why in failed:
        print(f"FAILED {name}: {why}")
    print(f"{len(results) - len(failed)} passed, {len(failed)} failed")
    return 1 if failed else 0


sys.exit(main())
