"""Whether a server can listen on an address here."""

import socket

import pytest

from harness.host.addresses import is_own_address


def test_loopback() -> None:
    assert is_own_address("127.0.0.1")


def test_a_card_of_this_machine() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing; the kernel only chooses the card
        except OSError:
            pytest.skip("this machine has no route to anywhere")
        assert is_own_address(probe.getsockname()[0])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0.0.0.0",
        "203.0.113.7",
        "224.0.0.1",
        "localhost",
        "::1",
        "127.0.0.1 ",
        "127.1",
        "x\0",
        "1.2.3.4/8",
    ],
)
def test_no_address_of_this_machine(text: str) -> None:
    assert not is_own_address(text)
