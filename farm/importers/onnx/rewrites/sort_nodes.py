"""Put the nodes of a graph into the order in which they can be computed.

ONNX's specification asks for that order, and ONNX Runtime does not: tools that insert nodes, such
as converters to float16, append them at the end.
"""

from __future__ import annotations

import heapq
from collections import defaultdict

import onnx

from farm.importers.onnx.node_reading import all_graphs, names_read


def sort_nodes(graph: onnx.GraphProto) -> bool:
    """Sort the nodes of a graph and of those within it; return whether this changed their order.

    The next node is the first of the file that can be computed. A graph with a cycle is left as it
    is.
    """
    changed = [_sort(one) for one in list(all_graphs(graph))]
    return any(changed)


def _sort(graph: onnx.GraphProto) -> bool:
    producers = {name: at for at, node in enumerate(graph.node) for name in node.output if name}
    needed = [
        {producers[name] for name in names_read(node) if name in producers} for node in graph.node
    ]
    if all(one < at for at, before in enumerate(needed) for one in before):
        return False
    readers: dict[int, list[int]] = defaultdict(list)
    for at, before in enumerate(needed):
        for one in before:
            readers[one].append(at)
    missing = [len(before) for before in needed]
    ready = [at for at, count in enumerate(missing) if not count]
    places: dict[tuple[str, ...], int] = {}
    while ready:
        at = heapq.heappop(ready)
        places[tuple(graph.node[at].output)] = len(places)
        for reader in readers[at]:
            missing[reader] -= 1
            if not missing[reader]:
                heapq.heappush(ready, reader)
    if len(places) < len(graph.node):
        return False
    graph.node.sort(key=lambda node: places[tuple(node.output)])
    return True
