"""Many processes that keep runs in one record at once, some of them killed; and what the record
holds in the end.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from report_runs import timed

from farm.store import RunStore, run_to_json

SAMPLES, _ENDLESS, _LIMIT_S = 100, 1_000_000, 180.0
# Keeps runs until it is killed or has kept so many, and says the id of each once it is kept.
WRITER = """
import dataclasses, json, sys
from farm.store import RunStore, run_from_json
store, run = RunStore(sys.argv[1]), run_from_json(json.loads(sys.argv[3]))
for number in range(int(sys.argv[4])):
    kept = dataclasses.replace(run, id=f"{sys.argv[2]}-{number}")
    store.keep(kept)
    print(kept.id, flush=True)
"""


@dataclass(frozen=True, slots=True)
class Found:
    """How many runs were acknowledged, and of these lost; and how many in the record are there
    twice, or not whole; `more` were kept by a
    writer that was killed before it could say so."""

    acknowledged: int
    lost: int
    twice: int
    halves: int
    more: int


def hammer(
    place: str,
    folder: Path,
    *,
    writers: int,
    each: int,
    kills: int,
    name: str = "w",
    meanwhile: Callable[[], None] = lambda: None,
) -> Found:
    """Have `writers` processes keep `each` runs, but for `kills` of them, which go on until they
    are killed, at moments left to chance.
    `meanwhile` is called once the first run was kept."""
    body, draw = json.dumps(run_to_json(timed("host", "net", 1))), random.Random()
    names = [f"{name}{number}" for number in range(writers)]
    victims, running = draw.sample(names, kills), {}
    for one in names:
        count = _ENDLESS if one in victims else each
        with (folder / one).open("wb") as said:
            running[one] = subprocess.Popen(
                [sys.executable, "-c", WRITER, place, one, body, str(count)], stdout=said
            )
    try:
        while not any((folder / one).stat().st_size for one in names):
            assert all(writer.poll() is None for writer in running.values())
            time.sleep(0.001)
        meanwhile()
        for victim in victims:
            moment = draw.randrange(each)
            while (folder / victim).read_bytes().count(b"\n") < moment:
                assert running[victim].poll() is None
                time.sleep(0.001)
            time.sleep(draw.random() * 0.02)
            running[victim].kill()
        for one, writer in running.items():
            assert writer.wait(_LIMIT_S) == (-9 if one in victims else 0)
    finally:
        for writer in running.values():
            writer.kill()
            writer.wait()
    said_ids = {
        line for one in names for line in (folder / one).read_text().split("\n")[:-1]
    }  # whole lines
    kept = [run for run in RunStore(place).runs() if run.id.rpartition("-")[0] in running]
    times = Counter(run.id for run in kept)
    halves = sum(not run.samples or len(run.samples.seconds) != SAMPLES for run in kept)
    return Found(
        len(said_ids),
        len(said_ids - set(times)),
        sum(many > 1 for many in times.values()),
        halves,
        len(set(times) - said_ids),
    )
