"""Write the whole corpus into a folder, with what is expected in ``corpus.json``."""

import json
import sys
from pathlib import Path

from . import all_cases


def main(folder: Path) -> None:
    """One folder a case."""
    expected = []
    for case in all_cases():
        place = folder / case.name
        place.mkdir(parents=True)
        path = case.write(place)
        expected.append(
            {
                "name": case.name,
                "path": str(path.relative_to(folder)),
                "verdict": case.verdict,
                "codes": case.codes,
                "tags": sorted(case.tags),
            }
        )
    (folder / "corpus.json").write_text(json.dumps(expected, indent=1))
    print(f"{len(expected)} cases are in {folder}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m tests.corpus FOLDER")
    main(Path(sys.argv[1]))
