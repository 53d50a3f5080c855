"""The lab server: boards that people and CI jobs lease, each to one at a time.

    nouns      wishes, leases, boards, events and rules, as types
    durations  30m, 2h: durations as people write them
    order      whose turn it is: classes, aging, use by owner; when a waiting lease has its boards
    refusals   what the lab refuses, as errors of three lines
    lending    who has which board, and for how long: pure and synchronous

A change is on disk before it is acknowledged.
"""
