"""The peer on a host for plain TCP flows. It takes what others send, and does what its standard
input says, a line each:

    send ADDRESS BYTES AT   connects, and sends so many bytes from then on (of the monotonic clock)

For every flow that has arrived it prints `ADDRESS AT`: where it was from, and when its last byte
was there. All hosts are on one machine, so they have the same clock.
"""

import socket
import sys
import threading
import time

PORT = 5001
PART_BYTES = 1 << 20


def take(connection: socket.socket, sender: str) -> None:
    """Read a flow to its end."""
    with connection:
        while connection.recv(PART_BYTES):
            last_s = time.monotonic()
    print(sender, last_s, flush=True)


def listen() -> None:
    """Take all flows."""
    with socket.create_server(("", PORT)) as server:
        print("ready", flush=True)
        while True:
            connection, (sender, _) = server.accept()
            threading.Thread(target=take, args=(connection, sender), daemon=True).start()


def send(address: str, count: int, at_s: float) -> None:
    """Send so many bytes from that time on."""
    with socket.create_connection((address, PORT)) as connection:
        time.sleep(max(0.0, at_s - time.monotonic()))
        connection.sendall(bytes(count))


def main() -> None:
    """Take flows and send some, until the standard input ends."""
    threading.Thread(target=listen, daemon=True).start()
    for line in sys.stdin:
        _, address, count, at_s = line.split()
        threading.Thread(target=send, args=(address, int(count), float(at_s)), daemon=True).start()


if __name__ == "__main__":
    main()
