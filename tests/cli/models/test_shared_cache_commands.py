"""Two farms and one bucket: what the first has built, the second fetches; and `farm cache` says
what is where.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from farm_processes import Farm
from onnx_models import graph, node, save
from s3_server import KEYS, s3_bucket, s3_server

NET = ("compile", "net.onnx", "--profile", "rasp3b", "--json")


@pytest.fixture
def s3() -> Iterator[dict[str, str]]:
    """The environment that leads to an S3 server with the bucket `lab`."""
    with s3_server() as address, s3_bucket(address, "lab"):
        yield {"AWS_ENDPOINT_URL": address, **KEYS}


def made(folder: Path, environment: dict[str, str], mark: str) -> Farm:
    """A farm with nothing built, whose devices.toml names the bucket."""
    folder.mkdir()
    (folder / "cache").mkdir()
    weights = {"w": np.random.default_rng(0).standard_normal((8, 8)).astype("float32")}
    body = graph(
        [node("MatMul", ["x", "w"], ["a"]), node("Relu", ["a"], ["y"])],
        {"x": [1, 8]},
        {"y": [1, 8]},
        weights=weights,
    )
    save(folder / "net.onnx", body)
    (folder / "devices.toml").write_text('cache = "s3://lab/farm"\n')
    return Farm(folder, folder / "cache", mark, environment)


def test_the_second_farm_builds_nothing(fresh: Farm, s3: dict[str, str], tmp_path: Path) -> None:
    one, two = (made(tmp_path / name, s3, fresh.mark) for name in ("one", "two"))
    first = one.run(*NET)
    assert first.code == 0 and not first.json["cached"] and "warning" not in first.err, first.err
    second = two.run(*NET)
    assert second.code == 0 and second.json["cached"] and "warning" not in second.err, second.err
    assert "shared cache: s3://lab/farm answers" in " ".join(two.run("doctor").out.split())
    assert second.json["digest"] == first.json["digest"]
    assert second.json["library_digest"] == first.json["library_digest"]
    assert "machine code" not in second.err and "importing" not in second.err.replace(
        "importing net", ""
    )

    here, shared = two.run("cache", "--json").json["places"]
    assert shared["place"] == "s3://lab/farm" and (shared["models"], shared["builds"]) == (
        here["models"],
        here["builds"],
    ) == (1, 1)
    assert "s3://lab/farm" in one.run("cache").out
    assert "1 models and 1 builds" in two.run("cache", "prune", "--days", "0").out
    assert "1 models and 1 builds" in two.run("cache", "fetch").out
    assert two.run("cache", "fetch", "--json").json["builds"] == 0
    assert (
        "would be removed" in two.run("cache", "prune", "--shared", "--days", "0", "--dry-run").out
    )
    assert two.run("cache", "prune", "--shared", "--days", "0", "--json").json["builds"] == 1
    assert two.run("cache", "--json").json["places"][1]["nbytes"] == 0


def test_a_bucket_that_is_away_costs_one_warning(
    fresh: Farm, s3: dict[str, str], tmp_path: Path
) -> None:
    lonely = made(tmp_path / "one", {**s3, "AWS_ENDPOINT_URL": "http://127.0.0.1:9"}, fresh.mark)
    done = lonely.run(*NET)
    assert done.code == 0 and not done.json["cached"]
    assert (
        done.err.count("warning: ") == 1
        and "the shared cache s3://lab/farm is not used" in done.err
    )
    refused = lonely.run("cache")
    assert refused.code == 2 and "does not answer" in refused.error["error"]
    assert lonely.run("cache", "prune", "--shared", "--days", "1").code == 2
    assert "the shared cache s3://lab/farm does not answer" in " ".join(
        lonely.run("doctor").out.split()
    )


def test_strangers_builds_read_and_do_not_write(
    fresh: Farm, s3: dict[str, str], tmp_path: Path
) -> None:
    stranger = made(tmp_path / "stranger", {**s3, "FARM_SHARED_CACHE_READ_ONLY": "1"}, fresh.mark)
    assert stranger.run(*NET).code == 0
    assert stranger.run("cache", "--json").json["places"][1]["nbytes"] == 0


def test_what_was_not_sealed_with_the_key_is_built_again(
    fresh: Farm, s3: dict[str, str], tmp_path: Path
) -> None:
    assert made(tmp_path / "one", s3, fresh.mark).run(*NET).code == 0
    done = made(tmp_path / "two", {**s3, "FARM_SHARED_CACHE_KEY": "secret"}, fresh.mark).run(*NET)
    assert done.code == 0 and not done.json["cached"] and "not sealed with this key" in done.err


def test_without_a_shared_cache_there_is_nothing_to_fetch(fresh: Farm) -> None:
    assert "devices.toml" in fresh.run("cache", "fetch").error["fix"]
    assert len(fresh.run("cache", "--json").json["places"]) == 1


def test_a_url_that_is_none_is_a_mistake_in_devices_toml(fresh: Farm) -> None:
    (fresh.folder / "devices.toml").write_text('cache = "http://lab"\n')
    done = fresh.run("devices")
    assert done.code == 2 and "s3://BUCKET/PREFIX" in done.err
