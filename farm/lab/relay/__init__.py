"""A tracker on loopback for unchanged clients of TVM, which finds the boards of a lab.

Modules:
    tracker   the tracker; the boards of a lease on the lab's own machine
    sessions  boards from outside: each session of a client goes through the door
"""
