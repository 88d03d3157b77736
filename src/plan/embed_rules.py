# SPDX-License-Identifier: Apache-2.0
"""Writes the rule files as C strings: embed_rules.py OUTPUT.c RULES.json..."""
import json
import sys

with open(sys.argv[1], "w") as out:
    out.write('/* Made by src/plan/embed_rules.py. */\n#include "plan/rules_builtin.h"\n\n')
    out.write("const char *const heft_rules_builtin[] = {\n")
    for path in sys.argv[2:]:
        with open(path) as f:
            text = json.dumps(json.load(f), separators=(",", ":"))
        for at in range(0, len(text), 100):
            out.write(json.dumps(text[at:at + 100]) + "\n")
        out.write(",\n")
    out.write("};\nconst size_t heft_rules_builtin_count = %d;\n" % len(sys.argv[2:]))
