"""Storage on the host: artifacts by digest in files, runs, predictions and records in SQL tables.

    artifact_store   Store: folders by kind and digest, published atomically; digest_of, file_digest
    backends         the two kinds of database: a SQLite file, a PostgreSQL server
    folder_archive   a stored folder as one file that can be checked
    database         Database: transactions, creation and migration of tables, retries, errors
    predictions      PredictionStore: the predicted classes of each sample, to resume a run
    tuning_records   TuningRecordStore: the fastest measured kernels, by CPU and workload
    run_json         runs as strict JSON and back
    runs             RunStore: the table of runs and the baselines, which are named sets of runs
    sample_encoding  compact lossless encoding of latency samples
    shared_cache     SharedCache: a bucket from which machines fetch what others have built
    source_digests   source_digest: a digest of farm's own source files
    sqlite_file      transactions on a SQLite file without SQLAlchemy, where nothing is unusual
    upsert           INSERT ... ON CONFLICT in the database's dialect

Every write is atomic: a folder, a run or a record is stored as a whole or not at all. A caller
imports the stores from this package and opens them with `open_local_store_over_shared_cache()`,
`RunStore.at()`, `RecordStore.of_user()` or `AnswerStore.of_user()`.
"""

from farm.store.artifact_store import (
    KINDS,
    Store,
    StoredFolder,
    Upstream,
    digest_of_parts,
    file_digest,
    user_cache_dir,
    user_data_dir,
)
from farm.store.folder_archive import ArchiveError, read_archive, write_archive
from farm.store.predictions import PredictionStore
from farm.store.run_json import SCHEMA as RUN_SCHEMA
from farm.store.run_json import as_strict_json, parse_untrusted_run, run_from_json, run_to_json
from farm.store.runs import RunStore
from farm.store.shared_cache import SharedCacheClient, open_local_store_over_shared_cache
from farm.store.source_digests import source_digest
from farm.store.tuning_records import SCHEMA as RECORD_SCHEMA
from farm.store.tuning_records import (
    MergeCounts,
    TuningRecordStore,
    read_records_file,
    record_to_json,
    write_records_file,
)

__all__ = [
    "KINDS",
    "RECORD_SCHEMA",
    "RUN_SCHEMA",
    "ArchiveError",
    "MergeCounts",
    "PredictionStore",
    "RunStore",
    "SharedCacheClient",
    "Store",
    "StoredFolder",
    "TuningRecordStore",
    "Upstream",
    "as_strict_json",
    "digest_of_parts",
    "file_digest",
    "open_local_store_over_shared_cache",
    "parse_untrusted_run",
    "read_archive",
    "read_records_file",
    "record_to_json",
    "run_from_json",
    "run_to_json",
    "source_digest",
    "user_cache_dir",
    "user_data_dir",
    "write_archive",
    "write_records_file",
]
