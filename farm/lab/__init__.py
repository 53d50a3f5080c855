"""The lab server: boards that people and CI jobs lease, each to one at a time.

    entities   requests, leases, boards, events and rules, as types
    durations  30m, 2h: durations as people write them
    order      whose turn it is: classes, aging, use by owner; when a waiting lease has its boards
    refusals   what the lab refuses, as errors of three lines
    effects    what a step changes, and what an earlier server left
    registry   the boards and kinds
    scheduler  who has which board, and for how long: pure and synchronous
    records    what is kept of a board
    sessions   the sessions of boards: of whom, for which lease, whether they are to end
    codec      leases, boards and events as JSON
    journal    what is kept, in SQLite or PostgreSQL
    writer     the thread that keeps it, and what is said only after that
    lender     the lab's side of TVM's tracker protocol
    control    the control socket: what people ask, and what they are answered
    callers    who is at the other end of a Unix socket, and how many connections each may have
    door       the way in from outside, by OpenSSH
    inventory  lab.toml
    run        the process: lock, sockets, event loop, signals
    health     whether a board is fit: verdicts, faults, recovery; pure
    checking   a check of a board: golden models by farm bench
    notices    what people are told: webhook or command
    keeper     what is done about it: checks, power cycles, cooling
    relay      a tracker on loopback, for unchanged clients of TVM; the boards of a lease nearby
    relay_sessions  boards from outside: each session of a relay's client goes through the door

A change is on disk before it is acknowledged.
"""
