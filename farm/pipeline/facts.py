"""What devices report about themselves.

Devices at an address are asked as tasks of one event loop in this process. The others are asked by
worker processes: TVM's client waits there, and the agent may have to be built and sent first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from farm import signals
from farm.pipeline.operations import Show, ask
from farm.pipeline.worker_tasks import FACTS_S, facts_task
from farm.store import Store
from farm.transports import rpc_tasks
from farm.types import Device


def facts_of(devices: Sequence[Device], *, store: Store, lanes: int, show: Show) -> dict[str, Any]:
    """Return the facts of each device by its name; those of a device that fails are its FarmError.

    `lanes` is how many worker processes run at once.
    """
    direct = [device for device in devices if rpc_tasks.can_be_asked(device)]
    others = [device for device in devices if not rpc_tasks.can_be_asked(device)]
    answers: dict[str, Any] = {}
    if direct:
        answers |= asyncio.run(rpc_tasks.of_all(direct, rpc_tasks.facts, signals.check))
    if others:
        answers |= ask(others, facts_task, store=store, lanes=lanes, timeout_s=FACTS_S, show=show)
    return answers
