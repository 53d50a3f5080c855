"""The lab over HTTP: REST, a stream of events, metrics, and a page for people.

    access          who asks, and what a browser may be made to ask
    connections     the connections on loopback: so many of each user, and how long they may be idle
    http_responses  JSON documents and errors, as responses
    rest            boards, leases, the queue and events
    event_stream    events as they happen (SSE), which resume
    snapshot        the lab at one moment, as the page reads it
    history         who had which board, from the journal
    gantt           a day of boards as bars
    templates       the templates in files/
    live_parts      the page's parts, rendered anew where the lab has changed
    lab_metrics     metrics for Prometheus
    pages           the page for people, and its buttons
    server          the sockets, and what belongs to which path

aiohttp serves it, in the event loop of the lab's server. Reading is open to whoever reaches the
socket, which is on loopback; changing needs to be known by the kernel or by a link of `farm lab
page`.
"""
