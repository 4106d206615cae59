"""Check line coverage: 93 % of all lines, and no file below 80 %.

python scripts/check_coverage.py coverage.json        as written by `coverage json`
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

TOTAL, FILE = 93.0, 80.0


def main() -> int:
    """Print the total and every file below its bound; the exit code is 1 where a bound is missed."""
    report = json.loads(Path(sys.argv[1]).read_text("utf-8"))
    total = report["totals"]["percent_covered"]
    files = {name: entry["summary"]["percent_covered"] for name, entry in report["files"].items()}
    low = {name: share for name, share in files.items() if share < FILE}
    print(f"{total:.2f} % of {report['totals']['num_statements']:,} statements in {len(files)} files")
    for name, share in sorted(low.items(), key=lambda pair: pair[1]):
        print(f"{name}: {share:.1f} %, needed is {FILE:g} %")
    if total < TOTAL:
        print(f"needed is {TOTAL:g} % of all")
    return int(bool(low) or total < TOTAL)


if __name__ == "__main__":
    sys.exit(main())
