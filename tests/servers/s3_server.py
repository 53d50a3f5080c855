"""Run an S3 server: moto's, or the one whose address FARM_TEST_S3 is.

The other server knows the access key "a" with the secret "s", and may create buckets. Tests of the
shared cache leave nothing in it.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from unittest import mock

import boto3
from moto import settings
from moto.server import ThreadedMotoServer

OTHER = os.environ.get("FARM_TEST_S3")
KEYS = {
    "AWS_ACCESS_KEY_ID": "a",
    "AWS_SECRET_ACCESS_KEY": "s",
    "AWS_REGION": "us-east-1",
}


@contextlib.contextmanager
def s3_server() -> Iterator[str]:
    """Yield the address of a server for the duration of the block."""
    if OTHER:
        yield OTHER
        return
    logging.getLogger("werkzeug").setLevel(logging.WARNING)
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@contextlib.contextmanager
def credentials_checked() -> Iterator[None]:
    """Refuse unknown access keys for the block, as every server but moto's does anyway."""
    with mock.patch.object(settings, "INITIAL_NO_AUTH_ACTION_COUNT", 0):
        yield


@contextlib.contextmanager
def s3_bucket(address: str, name: str) -> Iterator[None]:
    """Create a bucket for the duration of the block."""
    client = boto3.client(
        "s3",
        endpoint_url=address,
        region_name=KEYS["AWS_REGION"],
        aws_access_key_id=KEYS["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=KEYS["AWS_SECRET_ACCESS_KEY"],
    )
    client.create_bucket(Bucket=name)
    yield
    for item in client.list_objects_v2(Bucket=name).get("Contents", []):
        client.delete_object(Bucket=name, Key=item["Key"])
    client.delete_bucket(Bucket=name)
