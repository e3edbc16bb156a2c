"""Becomes the program it is given, after tying that program's life to the parent's.

Run as a script of its own: `python -I -S launch.py PARENT_PID DEATH_SIGNAL USER PROGRAM [ARGUMENT …]`; USER `-` keeps
the user. It exists because the alternatives fall short: subprocess's `preexec_fn` is unsafe, and warned of, in a
process with threads (librdkafka has some); `runuser` forks, so that the signal would reach it and not the server.

On Linux the kernel sends DEATH_SIGNAL when the thread that started this process ends, whatever ended it. Elsewhere
only an orderly end of the parent stops the program.
"""

from __future__ import annotations

import ctypes
import os
import sys

PR_SET_PDEATHSIG = 1


def become(parent_pid: int, death_signal: int, user: str, command: list[str]) -> None:
    """Drop to `user`, ask for `death_signal`, become `command`; returns only if the parent is gone."""
    if user != "-":
        import pwd  # noqa: PLC0415 - the start of a server waits for this script's imports

        entry = pwd.getpwnam(user)
        os.initgroups(user, entry.pw_gid)
        os.setgid(entry.pw_gid)
        os.setuid(entry.pw_uid)
    if sys.platform == "linux":
        # After the change of user, which clears it; it survives exec.
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, death_signal, 0, 0, 0)
    if os.getppid() == parent_pid:  # else the parent ended before the line above
        os.execv(command[0], command)  # noqa: S606 - no shell is meant


if __name__ == "__main__":
    become(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4:])
    sys.exit(1)
