"""TCP ports of loopback that nobody listens on."""
import socket


def free_ports(count):
    """All different."""
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def free_port():
    return free_ports(1)[0]
