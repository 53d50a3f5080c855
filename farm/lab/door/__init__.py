"""The way into a lab from outside: one account of OpenSSH, whose keys may run one command only.

    commands             what the holder of a key may ask for: `api`, or `board LEASE`
    main                 the command of each key, `farm lab door NAME`
    pump                 pass bytes between an SSH channel and a socket
    authorized_keys      the file of keys that sshd reads
    sshd_settings_check  what sshd's own configuration has to be, for the keys to be good for no
                         more
    board_address_check  whether the address that a board offers is its own
    board_socket_broker  the server's part: pass a board's socket on, and end it with its lease

`commands`, `main` and `pump` import nothing but the standard library: they start for each session.
"""
