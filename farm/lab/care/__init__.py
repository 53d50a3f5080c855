"""Care for the boards of a lab: whether each is fit, and what is done about it.

Modules:
    health_state_machine  whether a board is fit: verdicts, faults, recovery; pure
    board_checks          a check of a board: golden models by farm bench
    notices               what people are told: webhook or command
    health_controller     what is done about it: checks, power cycles, cooling
"""
