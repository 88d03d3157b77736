# SPDX-License-Identifier: Apache-2.0
"""Counts what test programs report, at the finest level that can be relied on.

A cmocka program counts with each of its tests, a program whose last summary line is "N passed, N failed[, N
skipped]" with these numbers, any other with one. Exit code 77 is a skip, and says why. A program that ends badly
without saying which of its tests failed (a crash, a sanitizer's report, a timeout) adds one failure.
"""

import json
import re

SKIP_EXIT_CODE = 77
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_PLAIN = re.compile(r"^(?:\w+: )?(\d+) passed, (\d+) failed(?:, (\d+) skipped)?$", re.M)


class Count:
    def __init__(self, passed=0, failed=0, skipped=0):
        self.passed, self.failed, self.skipped = passed, failed, skipped
        self.reasons = []  # of skips: (test, why)
        self.failures = []  # names

    def add(self, other):
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped
        self.reasons += other.reasons
        self.failures += other.failures

    def line(self):
        text = f"{self.passed} passed, {self.failed} failed"
        return text + (f", {self.skipped} skipped" if self.skipped else "")


def _last_words(text):
    lines = [line.strip() for line in text.strip().split("\n") if line.strip()]
    return lines[-1] if lines else "no reason given"


def _cmocka(name, text):
    """The tests of a cmocka program, or None when the output is not cmocka's."""
    if "[==========]" not in text:
        return None
    count, said, running = Count(), [], None
    for line in text.split("\n"):
        match = re.match(r"\[\s*(RUN|OK|FAILED|SKIPPED|ERROR|PASSED|=+|-+)\s*\] ?(.*)", line.strip())
        if not match:
            said.append(line)
            continue
        word, rest = match.groups()
        if word == "RUN":
            running, said = rest, []
        elif running is not None and rest.startswith(running):
            if word == "OK":
                count.passed += 1
            elif word == "SKIPPED":
                count.skipped += 1
                count.reasons.append((f"{name}: {running}", _last_words("\n".join(said))))
            elif word in ("FAILED", "ERROR"):
                count.failed += 1
                count.failures.append(f"{name}: {running}")
            else:
                continue
            running = None
        else:
            said.append(rest)  # a reason in the same clothes
    return count


def count_program(name, stdout, stderr, exit_code, timed_out=False):
    """One test program's count. cmocka writes failures to stderr, so the order of lines is not the whole story."""
    out, err = _ANSI.sub("", stdout or ""), _ANSI.sub("", stderr or "")
    if exit_code == SKIP_EXIT_CODE:
        count = Count(skipped=1)
        count.reasons.append((name, _last_words(out + "\n" + err)))
        return count
    count = _cmocka(name, out)
    if count is not None:
        for failed in dict.fromkeys(re.findall(r"^\[  (?:FAILED|ERROR)\s*\] (\w+)$", err, re.M)):
            if f"{name}: {failed}" not in count.failures:
                count.failed += 1
                count.failures.append(f"{name}: {failed}")
    else:
        plain = _PLAIN.findall(out)
        if plain:
            count = Count(*(int(number or 0) for number in plain[-1]))
            if count.failed:
                count.failures.append(name)
            if count.skipped:
                count.reasons.append((name, "; ".join(re.findall(r"^\s*skip\w*:? .*$", out, re.M)) or "see its output"))
        else:
            count = Count(passed=0 if exit_code or timed_out else 1)
    if (exit_code or timed_out) and not count.failed:
        count.failed += 1
        count.failures.append(f"{name}: " + ("timed out" if timed_out else f"exit code {exit_code}"))
    return count


def count_meson(log_path):
    """All programs of a `meson test` run, from its testlog.json."""
    total = Count()
    with open(log_path, encoding="utf-8", errors="replace") as file:
        for line in file:
            test = json.loads(line)
            name = re.sub(r"^heft:", "", test["name"]).replace(" / ", "/")
            timed_out = test["result"] in ("TIMEOUT", "INTERRUPT")
            bad = test["result"] not in ("OK", "EXPECTEDFAIL", "SKIP")
            code = test.get("returncode", 0) or (1 if bad else 0)
            total.add(count_program(name, test.get("stdout", ""), test.get("stderr", ""), code, timed_out))
    return total
