"""Runs a command in two processes on this machine, as RANK 0 and 1 of WORLD_SIZE 2.

    launch.py COMMAND [ARGUMENTS]

Rank 0 takes this process's place, and so its input and output. Rank 1 has none.
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
    subprocess.Popen(sys.argv[1:], env=os.environ | {'RANK': '1'}, stdin=subprocess.DEVNULL,
                     stdout=subprocess.DEVNULL)
    os.environ['RANK'] = '0'
    os.execvp(sys.argv[1], sys.argv[1:])


if __name__ == '__main__':
    main()
