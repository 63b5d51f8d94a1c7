"""Runs cases again: `python -m tests.fuzzing --seed 1 --case 77 --keep folder`."""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from pathlib import Path

from tests.fuzzing import running
from tests.fuzzing.cases import case

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--case", type=int, required=True)
parser.add_argument("--cases", type=int, default=1, help="how many, from --case on")
parser.add_argument("--how", choices=["here", "process", "spark"], default="here")
parser.add_argument("--keep", type=Path, help="write the files of the case into this folder")
parser.add_argument("--brief", action="store_true", help="one line per failure")


def main() -> int:
    """The number of cases that went wrong, at most 1."""
    asked = parser.parse_args()
    seen: Counter[str] = Counter()
    failed = doubtful = 0
    for number in range(asked.case, asked.case + asked.cases):
        made = case(asked.seed, number)
        with tempfile.TemporaryDirectory() as temporary:
            folder = asked.keep or Path(temporary)
            folder.mkdir(exist_ok=True, parents=True)
            running.write(made, folder)
            spark = asked.how == "spark"
            allowed = running.expected(made, folder, in_spark=spark)
            alone = asked.how == "process" or (made.may_crash and not spark)
            run = running.in_subprocess if alone else running.in_process
            ran = run(made, folder, *(["--engine=spark"] if spark else []))
            answer = running.judge(ran, allowed, may_abort=made.may_crash)
        seen[answer.what] += 1
        # Of these a refusal, or more than one count, would have been right as well.
        doubtful += bool(allowed.doubts) or len(allowed.readings) > 1
        if answer.problem is not None:
            failed += 1
            text = running.told(made, ran, allowed, answer, asked.how)
            brief = f"{number} {made.twist}: {answer.problem[:300]} | {ran.err[:200]!r}"
            print(brief if asked.brief else text + "\n")
        elif asked.cases == 1:
            print(running.told(made, ran, allowed, answer, asked.how))
    print(f"{failed} of {asked.cases} went wrong; {dict(seen)}; {doubtful} in doubt")
    return min(failed, 1)


if __name__ == "__main__":
    raise SystemExit(main())
