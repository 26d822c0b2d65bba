"""The network part, in one process: TLS, keys, what is refused, what outlives a connection."""

import threading
import time
from contextlib import contextmanager

import numpy as np
import pytest

flower = pytest.importorskip("tacit.federation.flower", exc_type=ImportError)

import httpx  # noqa: E402

from tacit.federation import fleet, keys  # noqa: E402
from tacit.federation.client import client_app, serve  # noqa: E402
from tacit.federation.connection import Connection, NotKnown, Unreachable  # noqa: E402
from tacit.federation.service import Address  # noqa: E402
from tacit.federation.training import federation, refuse_unfit  # noqa: E402
from tacit.train import train  # noqa: E402
from tests.federation.small import World, charges_of, models_of, simulated  # noqa: E402

HERE = Address("127.0.0.1", 0)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return World(tmp_path_factory.mktemp("world"), rounds=2)


@pytest.fixture
def up(world):
    with federation(world.enrolled, HERE, insecure=False, deadline=5, silence=2) as server:
        yield server


@contextmanager
def connected(server, key):
    connection = Connection(str(server.address), key, insecure=False)
    try:
        yield connection.open()
    finally:
        connection.close()


def content(number: int, size: int = 3):
    return flower.RecordDict(
        {"values": flower.ArrayRecord({"units": flower.Array(np.full(size, number))})}
    )


def asked(server, contents, answer_bytes=1 << 16):
    """Ask in a thread; the answers so far, and the thread."""
    answers = []

    def run():
        answers.extend(server.clients.ask(iter(contents), answer_bytes))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return answers, thread


def taken(connection):
    """The message that waits, within a second."""
    end = time.monotonic() + 2
    while time.monotonic() < end:
        if (message := connection.take()) is not None:
            return message
        time.sleep(0.01)
    raise AssertionError("no message came")


def values_of(message_content):
    return message_content["values"]["units"].numpy().tolist()


def test_a_training_over_tls_gives_the_bits_of_the_simulation(world, tmp_path):
    """Everything but processes of their own; a few clients are enough, the others are absent."""
    there = world.people[:3]
    with federation(world.enrolled, HERE, insecure=False, deadline=20, silence=1) as server:
        for one in there:
            app = client_app(world.trainer(one), lambda what: None)

            def connect(key=world.keys[one]):
                return Connection(str(server.address), key, insecure=False)

            options = {"poll": 0.02, "patience": 0.1}
            threading.Thread(
                target=pytest.raises,
                args=(Unreachable, serve, app, connect, lambda what: None),
                kwargs=options,
                daemon=True,
            ).start()
        assert server.clients.wait_for(len(there), 20) == len(there)
        run = tmp_path / "run"
        engine = server.engine_for(run, print)
        server.run(lambda: train(world.federated, run, engine=engine, progress=False))
    simulated(world.simulated, tmp_path / "alone", like=run)
    assert models_of(run) == models_of(tmp_path / "alone")
    assert charges_of(run) == charges_of(tmp_path / "alone")


def test_a_message_reaches_its_client_and_the_answer_comes_back(world, up):
    one, other = world.people[:2]
    with connected(up, world.keys[one]) as first, connected(up, world.keys[other]) as second:
        answers, thread = asked(up, [(one, content(1)), (other, content(2))])
        for connection in (first, second):
            message = taken(connection)
            [number, *_] = values_of(message.content)
            assert connection.hand_in(flower.Message(content(10 * number), reply_to=message))
        thread.join(5)
    assert {client: values_of(got)[0] for client, got in answers} == {one: 10, other: 20}


def test_an_order_waits_until_it_is_answered_and_no_longer(world, up):
    """A client that lost its connection, or was started anew, gets the same order again."""
    one = world.people[0]
    with connected(up, world.keys[one]) as connection:
        answers, thread = asked(up, [(one, content(1))])
        message = taken(connection)
    with connected(up, world.keys[one]) as connection:
        again = taken(connection)
        assert again.metadata.message_id == message.metadata.message_id
        answer = flower.Message(content(5), reply_to=again)
        assert connection.hand_in(answer)
        thread.join(5)
        assert connection.take() is None
        assert len(answers) == 1
        assert not connection.hand_in(answer)  # replayed, when nobody waits for it any more
        assert not connection.hand_in(flower.Message(content(6), reply_to=again))
    assert len(answers) == 1


def test_of_two_answers_the_first_counts(world, up):
    one, other = world.people[:2]
    with connected(up, world.keys[one]) as connection:
        answers, thread = asked(up, [(one, content(1)), (other, content(1))])
        message = taken(connection)
        assert connection.hand_in(flower.Message(content(5), reply_to=message))
        assert not connection.hand_in(flower.Message(content(6), reply_to=message))
        thread.join(5)
    assert [(client, values_of(got)[0]) for client, got in answers] == [(one, 5)]


def test_a_client_that_is_gone_is_waited_for_briefly_and_one_that_is_slow_until_the_deadline(
    world, up
):
    one, other = world.people[:2]
    begun = time.monotonic()
    assert list(up.clients.ask(iter([(one, content(1))]), 1000)) == []
    assert 1.9 < time.monotonic() - begun < 4.9  # the silence, and not the deadline
    with connected(up, world.keys[other]) as connection:
        begun = time.monotonic()
        answers, thread = asked(up, [(other, content(1))])
        taken(connection)
        while thread.is_alive():  # it is there, and does not answer
            connection.take()
            time.sleep(0.05)
        assert time.monotonic() - begun > 4.5
    assert answers == []


def test_nobody_answers_in_the_name_of_another(world, up):
    """Flower checks who asks; who is said to answer is checked here."""
    one, other = world.people[:2]
    with connected(up, world.keys[one]) as first, connected(up, world.keys[other]) as second:
        answers, thread = asked(up, [(one, content(1)), (other, content(2))])
        message = taken(first)
        forged = flower.Message(content(99), reply_to=message)
        assert not second.hand_in(forged)
        forged.metadata.__dict__["_src_node_id"] = second._node.node_id
        assert not second.hand_in(forged)
        assert first.hand_in(flower.Message(content(5), reply_to=message))
        thread.join(6)
    assert [(client, values_of(got)[0]) for client, got in answers] == [(one, 5)]


def test_an_answer_that_is_too_large_is_refused_before_it_is_read(world, up):
    one = world.people[0]
    with connected(up, world.keys[one]) as connection:
        answers, thread = asked(up, [(one, content(1))], answer_bytes=1000)
        message = taken(connection)
        assert not connection.hand_in(flower.Message(content(5, size=1 << 16), reply_to=message))
        thread.join(6)
    assert answers == []


def test_an_answer_of_very_many_parts_is_refused(world, up):
    one = world.people[0]
    with connected(up, world.keys[one]) as connection:
        _, thread = asked(up, [(one, content(1))])
        message = taken(connection)
        answer = flower.Message(content(5), reply_to=message)
        answer.content.update(
            {f"more {n}": flower.ArrayRecord({"x": flower.Array(np.full(9, n))}) for n in range(99)}
        )
        assert not connection.hand_in(answer)
        thread.join(6)
        before = len(up.grid.state.object_store)
        assert before == 0  # nothing of it is left


def test_a_look_for_an_order_waits_until_there_is_one(world, up):
    one = world.people[0]
    with connected(up, world.keys[one]) as connection:
        assert connection.take() is None  # after a while
        later = threading.Timer(0.2, lambda: asked(up, [(one, content(7))]))
        later.start()
        begun = time.monotonic()
        message = connection.take()
        assert values_of(message.content) == [7, 7, 7]
        assert time.monotonic() - begun >= 0.2


def handed_in(connection, answer):
    """Whether an answer was taken, tried again as `serve` does."""
    end = time.monotonic() + 20
    while time.monotonic() < end:
        try:
            return connection.hand_in(answer)
        except Unreachable:
            time.sleep(0.05)
    return None


def test_an_answer_waits_for_room_and_is_not_refused(world, up, monkeypatch):
    monkeypatch.setattr(fleet, "_FEWEST_UNREAD", 1)
    monkeypatch.setattr(fleet, "_MOST_UNREAD", 1)
    one, other = world.people[:2]
    with connected(up, world.keys[one]) as first, connected(up, world.keys[other]) as second:
        answers = up.clients.ask(iter([(one, content(1)), (other, content(2))]), 1 << 16)
        taking = threading.Thread(target=lambda: read.append(next(answers)), daemon=True)
        read, done = [], []
        taking.start()
        threads = []
        for connection in (first, second):
            answer = flower.Message(content(5), reply_to=taken(connection))
            hand_in = lambda own=connection, it=answer: done.append(own.hand_in(it))  # noqa: E731
            threads.append(threading.Thread(target=hand_in, daemon=True))
            threads[-1].start()
        taking.join(5)
        read.append(next(answers))
        for thread in threads:
            thread.join(5)
        assert {client for client, _ in read} == {one, other}
        assert done == [True, True]


def test_an_answer_that_stops_half_way_takes_nobodys_room(world, monkeypatch):
    """Its client is cut off; others answer, and when it is back the client begins again."""
    monkeypatch.setattr(fleet, "_FEWEST_UNREAD", 1)
    monkeypatch.setattr(fleet, "_MOST_UNREAD", 1)
    one, other = world.people[:2]
    with (
        federation(world.enrolled, HERE, insecure=False, deadline=60, silence=3) as up,
        connected(up, world.keys[other]) as second,
    ):
        with connected(up, world.keys[one]) as first:
            answers, thread = asked(up, [(one, content(1)), (other, content(2))])
            half = flower.Message(content(5), reply_to=taken(first))
            with monkeypatch.context() as cut:
                cut.setattr(first._client, "PushObject", lambda request: 1 / 0)
                with pytest.raises(ZeroDivisionError):
                    first.hand_in(half)
            first._closed.set()  # not a sign of life more
        assert up.grid.state.room == 0
        while up.grid.state.room == 0:
            message = taken(second)
        with connected(up, world.keys[one]) as first:
            assert handed_in(second, flower.Message(content(6), reply_to=message))
            assert handed_in(first, half)
            thread.join(10)
    assert {client: values_of(got)[0] for client, got in answers} == {one: 5, other: 6}


def test_all_are_sent_a_large_part_from_the_same_bytes(world, up):
    large, small = flower.Array(np.zeros(1 << 16)), flower.Array(np.zeros(2))
    shared = flower.ArrayRecord({"large": large, "small": small})
    own = ({"own": flower.ConfigRecord({"n": n}), "all": shared} for n in range(2))
    contents = zip(world.people, map(flower.RecordDict, own), strict=False)
    _, thread = asked(up, contents)
    state = up.grid.state
    while len(state.waiting) < 2:
        time.sleep(0.01)
    [(part, _)], [(piece, _)] = large.slice_array(), small.slice_array()
    assert state.reply_with(part) is state.reply_with(part)
    assert state.reply_with(piece) is None
    assert state.object_store.get(part) in state.reply_with(part)
    thread.join(6)
    assert len(state.object_store) == 0


def test_what_no_client_needs_is_not_served(world, up):
    """Among it is Flower's Control API, by which anybody could start and stop runs."""
    url = f"https://{up.address}"
    with httpx.Client(verify=False) as client:
        for path in (
            "/",
            "/docs",
            "/v1/control/start-run",
            "/v1/fleet/register-node",
            "/v1/fleet/get-fab",
            "/v1/runtime/acquire-task",
            "/openapi.json",
        ):
            assert client.post(url + path, content=b"").status_code == 404
        for body, code in ((b"", 401), (b"\xff" * 10, 400), (b"x" * (1 << 23), 413)):
            headers = {"content-type": "application/protobuf"}
            answer = client.post(f"{url}/v1/fleet/pull-messages", content=body, headers=headers)
            assert answer.status_code == code


def test_a_client_that_is_not_enrolled_is_told_so(world, up):
    stranger = keys.ClientKey.generate(world.authority)
    with pytest.raises(NotKnown, match="has to be enrolled"), connected(up, stranger):
        pass


def test_somebody_else_with_an_enrolled_id_is_not_that_client(world, up):
    impostor = keys.ClientKey.generate(world.authority, world.people[0])
    with pytest.raises(NotKnown), connected(up, impostor):
        pass


def test_a_node_cannot_be_asked_about_with_anothers_key(world, up):
    one, other = world.people[:2]
    with connected(up, world.keys[one]) as first, connected(up, world.keys[other]) as second:
        _, thread = asked(up, [(one, content(1))])
        second._node.CopyFrom(first._node)
        with pytest.raises(Unreachable, match="has to be greeted again"):
            second.take()
        thread.join(6)


def expired(world, folder, days):
    for name in ("ca.key", "ca.pem", "enrolment.json"):
        (folder / name).write_bytes((world.enrolled / name).read_bytes())
    keys.renew(folder, ["127.0.0.1"], days=days)
    return folder


def test_a_server_does_not_start_with_a_certificate_that_is_over(world, tmp_path):
    folder = expired(world, tmp_path, days=-1)
    with (
        pytest.raises(ValueError, match=r"is valid until .* and not now"),
        federation(folder, HERE, insecure=False, deadline=5),
    ):
        pass


def test_a_client_believes_no_certificate_that_is_over_or_of_others(world, tmp_path, monkeypatch):
    late = expired(world, tmp_path, days=-1)
    monkeypatch.setattr(keys.ServerFiles, "refuse_unusable", lambda self: None)
    with (
        federation(late, HERE, insecure=False, deadline=5) as server,
        pytest.raises(ValueError, match="not to be trusted: certificate has expired"),
        connected(server, world.keys[world.people[0]]),
    ):
        pass
    other = keys.make_server(tmp_path / "other", ["127.0.0.1"])
    other.add([world.keys[world.people[0]].enrolled()])
    with (
        federation(tmp_path / "other", HERE, insecure=False, deadline=5) as server,
        pytest.raises(ValueError, match="not to be trusted"),
        connected(server, world.keys[world.people[0]]),
    ):
        pass


def test_a_certificate_for_another_host_is_not_believed(world, tmp_path):
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    for name in ("ca.key", "ca.pem", "enrolment.json"):
        (folder / name).write_bytes((world.enrolled / name).read_bytes())
    keys.renew(folder, ["federation.example"])
    with (
        federation(folder, HERE, insecure=False, deadline=5) as server,
        pytest.raises(ValueError, match="not to be trusted: IP address mismatch"),
        connected(server, world.keys[world.people[0]]),
    ):
        pass


def test_without_tls_only_this_machine_is_served(world):
    for host in ("0.0.0.0", "192.0.2.7", "federation.example", "::"):
        with (
            pytest.raises(ValueError, match=r"--insecure is for 127\.0\.0\.1 only"),
            federation(world.enrolled, Address(host, 0), insecure=True, deadline=5),
        ):
            pass
    one = world.people[0]
    with federation(world.enrolled, HERE, insecure=True, deadline=5, silence=0.3) as server:
        connection = Connection(str(server.address), world.keys[one], insecure=True).open()
        assert server.clients.connected() == 1
        connection.close()


@pytest.mark.parametrize("text", ["here", "127.0.0.1", "127.0.0.1:", ":80", "a:99999", "a:-1"])
def test_an_address_is_a_host_and_a_port(text):
    with pytest.raises(ValueError, match="an address must be HOST:PORT"):
        Address.parse(text)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"plan": {"sampling": "poisson", "separation": None}}, "no sampling may be claimed"),
        ({"corpus": {"view": "iid"}}, "corpus.view must be 'users'"),
        ({"audit": {"canary_clients": 2}}, r"\[audit\] plants"),
        ({"model": {"trained": ["layers"]}}, "model.trained empty"),
        ({"tokenizer": {"source": "oracle", "accept_oracle": True}}, "cannot be 'oracle'"),
    ],
)
def test_what_clients_cannot_keep_the_promises_of_is_refused(world, changes, message):
    with pytest.raises(ValueError, match=message):
        refuse_unfit(world.federated.changed(**changes))
