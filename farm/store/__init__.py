"""Where everything kept on the host lies: artifacts by digest in files, runs and records in SQLite. What is kept is whole or absent."""

from farm.store.answers import AnswerStore
from farm.store.codec import run_from_json, run_to_json, strict
from farm.store.files import Store, cache_root, data_root, digest_of, file_digest
from farm.store.records import Merged, RecordStore, read_records, record_to_json, write_records
from farm.store.runs import RunStore

__all__ = [
    "AnswerStore",
    "Merged",
    "RecordStore",
    "RunStore",
    "Store",
    "cache_root",
    "data_root",
    "digest_of",
    "file_digest",
    "read_records",
    "record_to_json",
    "run_from_json",
    "run_to_json",
    "strict",
    "write_records",
]
