"""How long the commands that people wait for take, as whole processes: median of several runs.

python benchmarks/commands.py [--runs 7]
"""

import argparse
import statistics
import subprocess
import sys
import time

COMMANDS = (["--help"], ["list"], ["plan", "quickstart"], ["plan", "quickstart", "--json"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=7)
    runs = parser.parse_args().runs
    for arguments in COMMANDS:
        taken = []
        for _ in range(runs + 1):
            began = time.monotonic()
            argv = [sys.executable, "-m", "harness", *arguments]
            subprocess.run(argv, stdout=subprocess.DEVNULL, check=True)
            taken.append(time.monotonic() - began)
        print(f"harness {' '.join(arguments):24} median {statistics.median(taken[1:]):.2f} s, {runs} runs")


if __name__ == "__main__":
    main()
