"""Where workers are, and who uses which."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from scheduler_service.addresses import Addresses, Shared, look_up
from scheduler_service.config import WorkersConfig
from spearhead.errors import NotReady


class Names:
    """A resolver whose answers are changed by tests; ``None`` = the name is unknown."""

    def __init__(self) -> None:
        self.answers: Sequence[str] | None = ()

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        if self.answers is None:
            raise OSError("no such name")
        return [f"{answer}:{port}" for answer in self.answers]


def shared(*addresses: str) -> Shared:
    return Shared(Addresses(WorkersConfig(addresses=addresses)))


def test_configured_addresses_are_known_at_once_in_their_order() -> None:
    addresses = Addresses(WorkersConfig(addresses=("b:1", "a:1")))
    assert (addresses.known, addresses.dynamic) == (("b:1", "a:1"), False)


async def test_a_name_stands_for_all_addresses_behind_it() -> None:
    names = Names()
    addresses = Addresses(WorkersConfig(address="dns:///verify.ns.svc:50052"), names)
    assert (addresses.known, addresses.dynamic) == ((), True)
    names.answers = ("10.0.0.2", "10.0.0.1")
    await addresses.refresh()
    assert addresses.known == ("10.0.0.1:50052", "10.0.0.2:50052")


async def test_a_name_that_cannot_be_resolved_keeps_its_addresses() -> None:
    names = Names()
    addresses = Addresses(WorkersConfig(address="dns:///verify:1"), names)
    names.answers = ("10.0.0.1",)
    await addresses.refresh()
    names.answers = None
    await addresses.refresh()
    assert addresses.known == ("10.0.0.1:1",)


async def test_the_certificate_of_a_found_address_must_carry_the_name() -> None:
    names = Names()
    names.answers = ("10.0.0.1",)
    config = WorkersConfig(address="dns:///verify.ns.svc:1", tls_ca=Path("ca.crt"), token_file=Path("token"))
    addresses = Addresses(config, names)
    await addresses.refresh()
    target = addresses.target("10.0.0.1:1")
    assert (target.address, target.tls_name) == ("10.0.0.1:1", "verify.ns.svc")
    assert (target.tls_ca, target.token_file) == (Path("ca.crt"), Path("token"))


async def test_the_system_resolves_names() -> None:
    assert "127.0.0.1:7" in await look_up("127.0.0.1", 7)
    assert await look_up("::1", 7) == ["[::1]:7"]


def test_users_are_divided_among_the_workers() -> None:
    workers = shared("a:1", "b:1")
    assert [workers.choose(user).address for user in range(4)] == ["a:1", "b:1", "a:1", "b:1"]


def test_who_lost_a_worker_tries_the_others_first() -> None:
    workers = shared("a:1", "b:1")
    assert [workers.choose(0).address for _ in range(3)] == ["a:1", "b:1", "a:1"]


def test_lost_workers_keep_nobody_from_the_one_that_is_used_by_another() -> None:
    workers = shared("a:1", "b:1", "c:1")
    assert workers.choose(1).address == "a:1"
    assert {workers.choose(2).address for _ in range(3)} == {"a:1", "b:1", "c:1"}


def test_a_user_that_is_gone_makes_place() -> None:
    workers = shared("a:1", "b:1")
    assert [workers.choose(0).address, workers.choose(1).address] == ["a:1", "b:1"]
    workers.leave(0)
    assert workers.choose(2).address == "a:1"


def test_without_an_address_there_is_nothing_to_connect_to() -> None:
    with pytest.raises(NotReady, match="DNS"):
        Shared(Addresses(WorkersConfig(address="dns:///draft:1"), Names())).choose(0)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"address": "a:1", "addresses": ("b:1",)},
        {"addresses": ("a:1", "a:1")},
        {"address": "dns:///verify"},
        {"addresses": ("a:1", "")},
    ],
)
def test_addresses_that_make_no_sense_are_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"address|port"):
        WorkersConfig(**fields)
