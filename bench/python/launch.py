"""Runs a command in two processes on this machine, as RANK 0 and 1 of WORLD_SIZE 2.

    launch.py COMMAND [ARGUMENTS]       a .py file is run by this interpreter

Rank 0 has this process's input and output, rank 1 none.
"""

import os
import socket
import subprocess
import sys


def main():
    with socket.create_server(('127.0.0.1', 0)) as s:
        port = s.getsockname()[1]
    os.environ.update(MASTER_ADDR='127.0.0.1', MASTER_PORT=str(port), WORLD_SIZE='2',
                      GLOO_SOCKET_IFNAME='lo', USE_LIBUV='0')
    command = sys.argv[1:]
    if command[0].endswith('.py'):
        command = [sys.executable, '-B', *command]
    none = dict(stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    ranks = [subprocess.Popen(command, env=os.environ | {'RANK': str(rank)}, **(none if rank else {}))
             for rank in (0, 1)]
    sys.exit(max(abs(p.wait()) for p in ranks))  # whose processor time counts as this one's then


if __name__ == '__main__':
    main()
