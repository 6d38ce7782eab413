"""Addresses of this machine."""

import ipaddress
import socket

import psutil


def is_own_address(text: str) -> bool:
    """Whether a server can listen on this IPv4 address here and be reached at it. A wildcard is none."""
    try:
        address = ipaddress.IPv4Address(text)
    except ValueError:  # a name, or an address of another family
        return False
    if address.is_unspecified or address.is_multicast:
        return False
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.bind((text, 0))
    except OSError:
        return False
    return True


def own_address() -> str:
    """An address of this machine that is not loopback; loopback if there is none."""
    for card in psutil.net_if_addrs().values():
        for entry in card:
            if entry.family == socket.AF_INET and not entry.address.startswith("127."):
                return entry.address
    return "127.0.0.1"
