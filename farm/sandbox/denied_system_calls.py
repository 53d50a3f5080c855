"""Define the system calls that a sandboxed process may not use, by name and by architecture.

The numbers are those of Linux 6.19 (asm/unistd_64.h of x86 and of arm64). `tests/sandbox/` compares
them with the headers of the toolchain.
"""

from __future__ import annotations


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


LAST = 471
"""The highest number of the two tables. Later system calls fail with ENOSYS."""

NETWORK = _names("""
    socket connect bind listen accept accept4 sendto sendmsg sendmmsg recvfrom recvmsg
    recvmmsg setsockopt getsockopt shutdown getsockname getpeername
""")
"""Sockets of any family."""

PROGRAMS = _names("""
    execve execveat fork vfork setsid setpgid
""")
"""Starting processes and programs, and leaving the process group, by which a worker is killed."""

OTHER_PROCESSES = _names("""
    ptrace process_vm_readv process_vm_writev process_madvise process_mrelease pidfd_open
    pidfd_getfd pidfd_send_signal tkill rt_sigqueueinfo rt_tgsigqueueinfo kcmp
    migrate_pages move_pages setpriority ioprio_set sched_setscheduler sched_setparam
    sched_setattr
""")
"""Reading, stopping, slowing down and signalling other processes."""

SHARED_OBJECTS = _names("""
    shmget shmat shmctl semget semop semctl semtimedop msgget msgsnd msgrcv msgctl mq_open
    mq_unlink mq_timedsend mq_timedreceive mq_notify mq_getsetattr
""")
"""System V and POSIX objects that any process of the user can open by name."""

FILE_ATTRIBUTES = _names("""
    chmod fchmod fchmodat fchmodat2 chown fchown lchown fchownat setxattr lsetxattr
    fsetxattr setxattrat removexattr lremovexattr fremovexattr removexattrat utime utimes
    futimesat utimensat file_setattr truncate mknod mknodat open_by_handle_at
""")
"""Changes to files that Landlock does not control, or only from its third ABI on."""

KERNEL = _names("""
    bpf perf_event_open io_uring_setup io_uring_enter io_uring_register userfaultfd keyctl
    add_key request_key mount umount2 pivot_root chroot unshare setns move_mount open_tree
    open_tree_attr fsopen fsmount fsconfig fspick mount_setattr statmount listmount listns
    init_module finit_module delete_module kexec_load kexec_file_load reboot swapon
    swapoff sethostname setdomainname settimeofday clock_settime clock_adjtime adjtimex
    acct quotactl quotactl_fd iopl ioperm modify_ldt personality fanotify_init
    fanotify_mark vhangup syslog setuid setgid setreuid setregid setresuid setresgid
    setfsuid setfsgid setgroups capset memfd_secret splice tee vmsplice inotify_init
    inotify_init1 inotify_add_watch
""")
"""Kernel interfaces that no model needs.

They grant rights, tell what others do with files, or add code to attack.
"""

MEMORY = _names("""
    memfd_create
""")
"""Memory that no limit of a process counts."""

BY_POINTER = _names("""
    clone3 openat2
""")
"""Calls whose flags are in memory, which filters cannot read. The C library has fallbacks."""

NUMBERS: dict[str, tuple[int | None, int | None]] = {
    "accept": (43, 202),
    "accept4": (288, 242),
    "acct": (163, 89),
    "add_key": (248, 217),
    "adjtimex": (159, 171),
    "bind": (49, 200),
    "bpf": (321, 280),
    "capget": (125, 90),
    "capset": (126, 91),
    "chmod": (90, None),
    "chown": (92, None),
    "chroot": (161, 51),
    "clock_adjtime": (305, 266),
    "clock_settime": (227, 112),
    "clone": (56, 220),
    "clone3": (435, 435),
    "connect": (42, 203),
    "creat": (85, None),
    "delete_module": (176, 106),
    "execve": (59, 221),
    "execveat": (322, 281),
    "fanotify_init": (300, 262),
    "fanotify_mark": (301, 263),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "fchown": (93, 55),
    "fchownat": (260, 54),
    "fcntl": (72, 25),
    "file_setattr": (469, 469),
    "finit_module": (313, 273),
    "fork": (57, None),
    "fremovexattr": (199, 16),
    "fsconfig": (431, 431),
    "fsetxattr": (190, 7),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "futimesat": (261, None),
    "getpeername": (52, 205),
    "getsockname": (51, 204),
    "getsockopt": (55, 209),
    "init_module": (175, 105),
    "inotify_add_watch": (254, 27),
    "inotify_init": (253, None),
    "inotify_init1": (294, 26),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "ioctl": (16, 29),
    "ioperm": (173, None),
    "iopl": (172, None),
    "ioprio_set": (251, 30),
    "kcmp": (312, 272),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "kill": (62, 129),
    "lchown": (94, None),
    "listen": (50, 201),
    "listmount": (458, 458),
    "listns": (470, 470),
    "lremovexattr": (198, 15),
    "lsetxattr": (189, 6),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "migrate_pages": (256, 238),
    "mkdir": (83, None),
    "mkdirat": (258, 34),
    "mknod": (133, None),
    "mknodat": (259, 33),
    "mmap": (9, 222),
    "modify_ldt": (154, None),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "move_pages": (279, 239),
    "mq_getsetattr": (245, 185),
    "mq_notify": (244, 184),
    "mq_open": (240, 180),
    "mq_timedreceive": (243, 183),
    "mq_timedsend": (242, 182),
    "mq_unlink": (241, 181),
    "msgctl": (71, 187),
    "msgget": (68, 186),
    "msgrcv": (70, 188),
    "msgsnd": (69, 189),
    "open": (2, None),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "open_tree_attr": (467, 467),
    "openat": (257, 56),
    "openat2": (437, 437),
    "perf_event_open": (298, 241),
    "personality": (135, 92),
    "pidfd_getfd": (438, 438),
    "pidfd_open": (434, 434),
    "pidfd_send_signal": (424, 424),
    "pivot_root": (155, 41),
    "prctl": (157, 167),
    "prlimit64": (302, 261),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "reboot": (169, 142),
    "recvfrom": (45, 207),
    "recvmmsg": (299, 243),
    "recvmsg": (47, 212),
    "removexattr": (197, 14),
    "removexattrat": (466, 466),
    "request_key": (249, 218),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "sched_setaffinity": (203, 122),
    "sched_setattr": (314, 274),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "semctl": (66, 191),
    "semget": (64, 190),
    "semop": (65, 193),
    "semtimedop": (220, 192),
    "sendmmsg": (307, 269),
    "sendmsg": (46, 211),
    "sendto": (44, 206),
    "setdomainname": (171, 162),
    "setfsgid": (123, 152),
    "setfsuid": (122, 151),
    "setgid": (106, 144),
    "setgroups": (116, 159),
    "sethostname": (170, 161),
    "setns": (308, 268),
    "setpgid": (109, 154),
    "setpriority": (141, 140),
    "setregid": (114, 143),
    "setresgid": (119, 149),
    "setresuid": (117, 147),
    "setreuid": (113, 145),
    "setsid": (112, 157),
    "setsockopt": (54, 208),
    "settimeofday": (164, 170),
    "setuid": (105, 146),
    "setxattr": (188, 5),
    "setxattrat": (463, 463),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "shmget": (29, 194),
    "shutdown": (48, 210),
    "socket": (41, 198),
    "splice": (275, 76),
    "statmount": (457, 457),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "syslog": (103, 116),
    "tee": (276, 77),
    "tgkill": (234, 131),
    "tkill": (200, 130),
    "truncate": (76, 45),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
    "utime": (132, None),
    "utimensat": (280, 88),
    "utimes": (235, None),
    "vfork": (58, None),
    "vhangup": (153, 58),
    "vmsplice": (278, 75),
}
"""The numbers on x86-64 and on aarch64; None if the architecture has no such call."""
