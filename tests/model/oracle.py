#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Generated safetensors files, judged by heft and by the reference (the Python package safetensors).

    oracle.py PROGRAM [--cases N] [--seconds S] [--seed SEED]

Legal files in every odd writing that the format allows, then the same with wrong tokens, wrong bytes, wrong
numbers or a wrong frame. Verdicts must be equal, errors of the same kind, and an accepted file must hold the same
tensors and metadata on both sides. PROGRAM is st_verdict. Stops after N files or S seconds, whichever comes first;
a failure prints the file, so that it can be tried alone. Exit code 77: the package is not installed.
"""

import argparse
import os
import random
import re
import struct
import subprocess
import sys
import tempfile
import time

import corpus

BATCH = 1000
SHOWN_PROBLEMS = 10
# Tensors of equal range come in no fixed order in the reference, and its first error wins: it is asked again.
TRIES = 40

DTYPES = list(corpus.BITS)
RANKS = [0, 1, 1, 2, 2, 3] * 8 + [12] * 8 + [63, 64, 65, 66, 200]
MAX_RANK = 64  # of heft: of more dimensions it keeps those that are not 1, as many
SPACES = ["", "", "", "", " ", "\n", "\t", "\r\n", "  "]
NUMBERS = ["0", "1", "2", "7", "8", "16", "-0", "-1", "00", "01", "1.0", "1e0", "1E+2", "0.5", "-", "+1", ".5", "1.", "1e",
           "1e+", "1e400", "1e-400", "0e400", "1.7976931348623157e308", "1.7976931348623158e308", "179769313486231580e291",
           "9223372036854775807", "9223372036854775808", "18446744073709551615", "18446744073709551616", "4294967296",
           "184467440737095516160000", "1" + "0" * 308, "1" + "0" * 309, "0.1e310", "123456789012345678901234567890e279",
           "1e2147483648", "0.0e2147483648", "1e-2147483649", "Infinity", "NaN", "0x10", "1_0", "١"]
STRINGS = ['""', '"a"', '"U8"', '"F32"', '"dtype"', '"shape"', '"data_offsets"', '"__metadata__"', '"d\\u0074ype"',
           '"\\u0055\\u0038"', '"\\ud83d\\ude00"', '"\\ud83d"', '"\\ude00"', '"\\ud83d\\n"', '"\\ud83dx"', '"\\u00"', '"\\u00g0"',
           '"\\q"', '"\\/"', '"\\b\\f\\n\\r\\t\\"\\\\"', '"\\u0000"', '"\x00"', '"\x1f"', '"\x7f"', '"é"', '"\u2028"', '"😀"',
           '"\\uD83D\\uDE00"', '"unended', "'a'", '"Q8_0"', '"u8"', '"U8 "', '"BOOL"', '"F4"']
WORDS = ["null", "true", "false", "nul", "True", "nan", "undefined"]
PUNCTUATION = ["{", "}", "[", "]", ",", ":", "{}", "[]", ",,", "//", "/**/", "{\"U8\":null}", "{\"U8\":{}}", "\ufeff", "\x0b",
               "\x00", "\u00a0"]
BYTES = [b"\xff", b"\x80", b"\xc0\x80", b"\xc3\xa9", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xf0\x9f\x98\x80", b"\xe2\x82", b"\0",
         b"\n", b"\"", b"\\", b"{", b"}", b" ", b"9", b"e", b"-", b".", b","]
TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|-?[0-9][0-9.eE+-]*|[a-z]+|[ \t\r\n]+|.', re.S)


class Generator:
    def __init__(self, seed):
        self.random = random.Random(seed)

    # ---- legal files, oddly written ----

    def space(self):
        return self.random.choice(SPACES) if self.odd else ""

    def join(self, parts, left, right):
        return left + self.space() + ",".join(self.space() + p + self.space() for p in parts) + self.space() + right

    def string(self, text):
        """The text as a JSON string, here and there escaped without need."""
        out = []
        for char in text:
            code = ord(char)
            if code < 0x20 or char in '"\\' or (self.odd and self.random.random() < 0.1):
                if char in '"\\/' and self.random.random() < 0.5:
                    out.append("\\" + char)
                elif code > 0xFFFF:
                    code -= 0x10000
                    out.append(f"\\u{0xD800 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04X}")
                else:
                    out.append(f"\\u{code:04x}")
            else:
                out.append(char)
        return '"' + "".join(out) + '"'

    def name(self):
        pick = self.random.random()
        if pick < 0.7:
            return f"layers.{self.random.randrange(5)}.w{self.random.randrange(5)}"
        if pick < 0.9:
            return "".join(self.random.choice("ab\"\\/\n\0\x7fé\u2028😀 .") for _ in range(self.random.randrange(6)))
        return self.random.choice(["", "dtype", "a", "__metadata_", "x" * 300, "é" * 20])

    def value(self, depth=0):
        """Any JSON."""
        pick = self.random.random()
        if depth < 4 and pick < 0.15:
            return self.join([self.value(depth + 1) for _ in range(self.random.randrange(4))], "[", "]")
        if depth < 4 and pick < 0.3:
            return self.join([self.string(self.name()) + self.space() + ":" + self.space() + self.value(depth + 1)
                              for _ in range(self.random.randrange(4))], "{", "}")
        if pick < 0.33:
            levels = self.random.choice([2, 100, 123, 124, 125, 126, 127, 200]) - depth
            return "[" * levels + "]" * levels
        return self.random.choice([self.string(self.name()), "null", "true", "false", "0", "-7", "1.5", "1e308", "-0.0e-5",
                                   "123456789012345678901234567890", "0e999"])

    def number(self, digits=17):
        """A number in the grammar, of any size: where a double ends is a place to be exact."""
        text = self.random.choice(["", "-"]) + str(self.random.randrange(10 ** self.random.randrange(1, digits)))
        if self.random.random() < 0.4:
            text += "." + "".join(self.random.choice("0123456789") for _ in range(self.random.randrange(1, 25)))
        if self.random.random() < 0.7:
            text += self.random.choice("eE") + self.random.choice(["", "+", "-"]) + str(self.random.randrange(280, 320))
        return text

    def shape(self, dtype):
        while True:
            rank = self.random.choice(RANKS)
            shape = [self.random.choice([0, 1, 1, 2, 3, 4, 8]) for _ in range(rank)]
            if rank > 12 and self.random.random() < 0.7:  # few that are not 1
                shape = [size if self.random.random() < 0.05 else 1 for size in shape]
            total = corpus.BITS[dtype]
            for size in shape:
                total *= size
            if total % 8 == 0 and total < 1 << 16:
                return shape, total // 8

    def offsets_text(self, begin, end):
        return self.join([str(begin), str(end)], "[", "]")

    def entry(self, dtype, shape, begin, end):
        kind = self.string(dtype)
        if self.odd and self.random.random() < 0.1:
            kind = self.join([kind + self.space() + ":" + self.space() + "null"], "{", "}")
        values = [kind, self.join([str(size) for size in shape], "[", "]"), self.offsets_text(begin, end)]
        if self.odd and self.random.random() < 0.15:
            return self.join(values, "[", "]")
        fields = [self.string(key) + self.space() + ":" + self.space() + text
                  for key, text in zip(("dtype", "shape", "data_offsets"), values)]
        if self.odd:
            while self.random.random() < 0.3:
                fields.append(self.string(self.random.choice(["x", "strides", "Dtype", ""])) + ":" +
                              (self.number(40) if self.random.random() < 0.3 else self.value()))
            self.random.shuffle(fields)
        return self.join(fields, "{", "}")

    def metadata(self):
        if self.random.random() < 0.1:
            return "null"
        return self.join([self.string(self.name()) + ":" + self.string(self.name())
                          for _ in range(self.random.randrange(4))], "{", "}")

    def legal(self):
        """The parts of a file: entries as [name, text], bytes of data."""
        self.odd = self.random.random() < 0.8
        entries, at = [], 0
        for index in range(self.random.choice([0, 1, 1, 2, 3, 5, 8])):
            dtype = self.random.choice(DTYPES)
            shape, size = self.shape(dtype)
            name = self.name() if self.random.random() < 0.3 else f"t{index}"
            entries.append([name, self.entry(dtype, shape, at, at + size)])
            at += size
        if self.random.random() < 0.4:
            entries.append(["__metadata__", self.metadata()])
        if self.odd and self.random.random() < 0.5:
            self.random.shuffle(entries)
        return entries, at

    def text(self, entries):
        body = self.join([self.string(name) + self.space() + ":" + self.space() + text for name, text in entries], "{", "}")
        return self.space() + body + self.space() + " " * self.random.choice([0, 0, 7])

    # ---- wrong ones ----

    def break_entries(self, entries, data):
        """Something that is still JSON: names twice, other numbers, more or less data."""
        pick = self.random.randrange(6)
        if pick == 0 and entries:
            entries.insert(self.random.randrange(len(entries) + 1), list(self.random.choice(entries)))
        elif pick == 1 and len(entries) > 1:
            self.random.choice(entries)[0] = self.random.choice(entries)[0]
        elif pick == 2:
            return max(0, data + self.random.choice([-8, -1, 1, 8]))
        elif entries:
            chosen = self.random.choice(entries)
            numbers = list(re.finditer(r"(?<![\w.\\+-])\d+(?![\w.])", chosen[1]))
            if numbers:
                at = self.random.choice(numbers)
                old = int(at.group())
                new = self.random.choice([str(old + 1), str(max(0, old - 1)), str(old * 2), "0", str(2**61), str(2**64 - 1),
                                          self.random.choice(NUMBERS)])
                chosen[1] = chosen[1][:at.start()] + new + chosen[1][at.end():]
        return data

    def break_tokens(self, text):
        tokens = TOKEN.findall(text)
        for _ in range(self.random.choice([1, 1, 1, 2, 3])):
            at = self.random.randrange(len(tokens)) if tokens else 0
            pick = self.random.randrange(7)
            new = self.random.choice(self.random.choice([NUMBERS, STRINGS, WORDS, PUNCTUATION]))
            if pick == 0:
                tokens[at:at + 1] = []
            elif pick == 1:
                tokens[at:at] = tokens[at:at + 1]
            elif pick == 2 and tokens:
                other = self.random.randrange(len(tokens))
                tokens[at], tokens[other] = tokens[other], tokens[at]
            elif pick == 3:
                tokens[at:at] = [new]
            elif pick == 4 and tokens:
                to = min(len(tokens), at + self.random.randrange(1, 12))
                tokens[at:at] = tokens[at:to]
            else:
                tokens[at:at + 1] = [new]
        return "".join(tokens)

    def break_bytes(self, header):
        out = bytearray(header)
        for _ in range(self.random.choice([1, 1, 2, 4])):
            at = self.random.randrange(len(out) + 1)
            pick = self.random.randrange(5)
            if pick == 0 and at < len(out):
                out[at] ^= 1 << self.random.randrange(8)
            elif pick == 1:
                out[at:at] = self.random.choice(BYTES)
            elif pick == 2:
                del out[at:at + self.random.choice([1, 1, 1, 5])]
            elif pick == 3 and at < len(out):
                out[at] = self.random.randrange(256)
            elif self.random.random() < 0.2:
                del out[at:]
            else:
                out[at:at + 1] = self.random.choice(BYTES)
        return bytes(out)

    def frame(self, header, data):
        length = len(header)
        if self.random.random() < 0.03:
            length = max(0, self.random.choice([length - 1, length + 1, length + data, length + data + 1, 0, 10**8, 10**8 + 1,
                                                2**63, 2**64 - 1]))
        content = struct.pack("<Q", length) + header + self.random.randbytes(data)
        if self.random.random() < 0.01:
            content = content[:self.random.randrange(len(content) + 1)]
        return content

    def case(self):
        entries, data = self.legal()
        how = self.random.random()
        if 0.3 < how < 0.55:
            data = self.break_entries(entries, data)
        text = self.text(entries)
        if 0.5 < how < 0.8:
            text = self.break_tokens(text)
        header = text.encode("utf-8", "surrogatepass")
        if how > 0.78:
            header = self.break_bytes(header)
        return self.frame(header, data)


# ---- the two sides ----

def heft_answers(program, cases):
    """For each case (verdict, code, sentence, tensors, metadata)."""
    stream = b"".join(struct.pack("<Q", len(case)) + case for case in cases)
    said = subprocess.run([program, "--stream"], input=stream, capture_output=True, check=False)
    if said.returncode:
        raise SystemExit(f"{program} ended with {said.returncode}: {said.stderr.decode(errors='replace')[-3000:]}")
    answers, tensors, metadata = [], {}, {}
    for line in said.stdout.decode(errors="surrogateescape").split("\n")[:-1]:
        kind, *rest = line.split("\t")
        if kind == "T":
            name, dtype, begin, end, shape = rest
            tensors[bytes.fromhex(name).decode()] = (dtype, [int(n) for n in shape.split(",") if n], int(begin), int(end))
        elif kind == "M":
            metadata[bytes.fromhex(rest[0]).decode()] = bytes.fromhex(rest[1]).decode()
        else:
            answers.append((*rest, tensors, metadata))
            tensors, metadata = {}, {}
    return answers


def kept_shape(shape):
    return shape if len(shape) <= MAX_RANK else [size for size in shape if size != 1][:MAX_RANK]


def same_content(case, tensors, metadata, folder):
    """What differs between heft's tensors and the package's, or None."""
    from safetensors import deserialize, safe_open

    data = case[8 + struct.unpack("<Q", case[:8])[0]:]
    theirs = {name: (info["dtype"], kept_shape(list(info["shape"])), bytes(info["data"])) for name, info in deserialize(case)}
    ours = {name: (dtype, shape, data[begin:end]) for name, (dtype, shape, begin, end) in tensors.items()}
    if ours != theirs:
        return f"tensors differ: {ours} and {theirs}"
    if metadata or b"metadata" in case:
        path = os.path.join(folder, "case.safetensors")
        with open(path, "wb") as file:
            file.write(case)
        with safe_open(path, "np") as opened:
            if (opened.metadata() or {}) != metadata:
                return f"metadata differ: {metadata} and {opened.metadata()}"
    return None


def difference(case, answer, deserialize, folder):
    verdict, code, sentence, tensors, metadata = answer
    wanted, error = corpus.reference_verdict(deserialize, case)
    if verdict != wanted:
        return f"the reference says {wanted} {error}, heft {verdict} {code} ({sentence})"
    if verdict == "ACCEPT":
        return same_content(case, tensors, metadata, folder)
    for _ in range(TRIES):
        if error == corpus.CODES[code]:
            return None
        _, error = corpus.reference_verdict(deserialize, case)
    return f"the reference refuses for {error}, heft for {code} ({sentence})"


def main():
    parser = argparse.ArgumentParser(usage="oracle.py PROGRAM [--cases N] [--seconds S] [--seed SEED]")
    parser.add_argument("program")
    parser.add_argument("--cases", type=int, default=40000)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--seed", default="heft")
    arguments = parser.parse_args()
    try:
        from safetensors import deserialize
    except ImportError:
        print("the Python package safetensors is not installed (scripts/bootstrap installs it)")
        return corpus.SKIPPED

    generator, done, accepted, problems = Generator(arguments.seed), 0, 0, []
    stop = time.monotonic() + arguments.seconds
    with tempfile.TemporaryDirectory(prefix="heft-oracle-") as folder:
        while done < arguments.cases and time.monotonic() < stop and len(problems) < SHOWN_PROBLEMS:
            cases = [generator.case() for _ in range(min(BATCH, arguments.cases - done))]
            answers = heft_answers(arguments.program, cases)
            if len(answers) != len(cases):
                raise SystemExit(f"{len(cases)} files, {len(answers)} answers")
            for case, answer in zip(cases, answers):
                why = difference(case, answer, deserialize, folder)
                accepted += answer[0] == "ACCEPT"
                if why:
                    problems.append(f"{case!r}: {why}")
            done += len(cases)
    for problem in problems[:SHOWN_PROBLEMS]:
        print(problem)
    print(f"{done} files, {accepted} of them accepted, seed {arguments.seed}")
    print(f"{done - len(problems)} passed, {len(problems)} failed")
    return 1 if problems or not accepted else 0


if __name__ == "__main__":
    sys.exit(main())
