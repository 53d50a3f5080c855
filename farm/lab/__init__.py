"""The lab server: boards that people and CI jobs lease, each to one at a time.

    entities        requests, leases, boards, events and rules, as types
    durations       30m, 2h: durations as people write them
    scheduling      which lease gets which boards, and what reservations are promised
    refusals        what the lab refuses, as errors of three lines
    board_records   what is kept of a board
    board_sessions  the sessions of boards: of whom, for which lease, whether they are to end
    storage         what is kept, in SQLite or PostgreSQL
    lender          the lab's side of TVM's tracker protocol
    control_socket  the control socket: what people ask, and what they are answered
    callers         who is at the other end of a Unix socket, and the limits of connections
    change_budget   how many changes a person may ask for in a minute
    shared_places   places that people share, such as connections: some for each
    door            the way in from outside, by OpenSSH
    lab_toml        lab.toml
    run             the process: lock, sockets, event loop, signals
    care            whether boards are fit, what is done about it, and who is told
    relay           a tracker on loopback, for unchanged clients of TVM

A change is on disk before it is acknowledged.
"""
