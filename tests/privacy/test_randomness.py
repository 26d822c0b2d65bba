"""Run keys, and that the streams they give are independent.

Unless a test says otherwise it raises a false alarm for one seed in 10^6.  All seeds are fixed, so
a test that passes once passes always.
"""

from __future__ import annotations

import hmac
import math
import os
import stat
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.special import ndtri

from tacit.privacy import randomness
from tacit.privacy.randomness import RunKey
from tacit.privacy.stream import Stream

Floats = NDArray[np.float64]

FALSE_ALARM = 1e-6


def make_stream(**changed: object) -> Stream:
    parts: dict[str, object] = {"branch": "main", "round": 3, "attempt": 0, "purpose": "noise"}
    seed = changed.pop("seed", 7)
    assert isinstance(seed, int)
    return RunKey.from_seed(seed).stream(**(parts | changed))  # type: ignore[arg-type]


# Streams: what they are, and that they are independent


def test_a_stream_is_aes_in_counter_mode_under_the_hmac_of_its_parts() -> None:
    """Derived again by hand, so that a change, which would change all noise, is noticed."""
    secret = bytes(range(32))
    parts = [
        (b"s", b"tacit stream, 1"),
        (b"s", b"main"),
        (b"i", b"3"),
        (b"i", b"12"),
        (b"s", b"noise"),
        (b"i", b"5"),
    ]
    message = b"".join(kind + len(part).to_bytes(8, "big") + part for kind, part in parts)
    key = hmac.digest(secret, message, "sha256")
    block = Cipher(algorithms.AES(key), modes.ECB()).encryptor()
    keystream = b"".join(block.update(counter.to_bytes(16, "big")) for counter in range(50))
    run_key = RunKey(secret, is_simulation=True)
    stream = run_key.stream(branch="main", round=3, attempt=12, purpose="noise", index=5)
    np.testing.assert_array_equal(stream.words(100), np.frombuffer(keystream, "<u8"))
    refined = block.update((2**128 - 2**64 + 41).to_bytes(16, "big"))[:8]
    expected = (int.from_bytes(refined, "little") + 0.5) / 2**64
    assert stream._fractions(np.array([41])) == pytest.approx([expected], rel=1e-15)


def are_independent(a: Stream, b: Stream) -> bool:
    """No word in common (a chance of 10^-9), and no correlation as they stand or shifted by one."""
    n = 1 << 16
    if np.intersect1d(a.words(n), b.words(n)).size:
        return False
    return are_uncorrelated(a.normal(n), b.normal(n))


def are_uncorrelated(x: Floats, y: Floats) -> bool:
    limit = -ndtri(FALSE_ALARM / 6) / math.sqrt(len(x))  # two-sided, for three shifts
    pairs = [(x, y), (x[1:], y[:-1]), (x[:-1], y[1:])]
    return all(abs(np.corrcoef(a, b)[0, 1]) < limit for a, b in pairs)


@pytest.mark.parametrize(
    "changed",
    [
        {"seed": 8},
        {"branch": "other"},
        {"round": 4},
        {"attempt": 1},
        {"purpose": "cohort"},
        {"index": 1},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_streams_that_differ_in_one_part_are_independent(changed: dict[str, object]) -> None:
    assert are_independent(make_stream(), make_stream(**changed))


def test_the_independence_test_rejects_equal_shifted_and_faintly_correlated_streams() -> None:
    assert not are_independent(make_stream(), make_stream())
    ahead = make_stream()
    ahead.words(1)
    assert not are_independent(make_stream(), ahead)
    # A correlation of 0.05 is 12.8 steps, against a limit of 5.2.
    x, y = make_stream().normal(1 << 16), make_stream(round=4).normal(1 << 16)
    assert not are_uncorrelated(x, 0.05 * x + y)


def test_successive_values_of_a_stream_are_uncorrelated() -> None:
    values = make_stream().normal(1 << 17)
    assert are_uncorrelated(values[::2], values[1::2])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"branch": "a", "purpose": "bc"}, {"branch": "ab", "purpose": "c"}),
        ({"branch": "", "purpose": "ab"}, {"branch": "ab", "purpose": ""}),
        ({"round": 1, "attempt": 11}, {"round": 11, "attempt": 1}),
        ({"attempt": 1, "index": 0}, {"attempt": 0, "index": 1}),
        ({"branch": "3", "round": 0}, {"branch": "", "round": 30}),
    ],
)
def test_parts_cannot_be_confused(one: dict[str, object], other: dict[str, object]) -> None:
    assert not np.intersect1d(make_stream(**one).words(64), make_stream(**other).words(64)).size


part_lists = st.lists(st.one_of(st.text(), st.integers(0), st.binary()), max_size=4)


@given(part_lists, part_lists)
def test_the_encoding_of_parts_is_injective(one: list[object], other: list[object]) -> None:
    encoded = [randomness._encode("label", *parts) for parts in (one, other)]  # type: ignore[arg-type]
    assert (encoded[0] == encoded[1]) == (one == other)


stream_parts = st.fixed_dictionaries(
    {
        "branch": st.text(max_size=3),
        "purpose": st.text(max_size=3),
        "round": st.integers(0, 20),
        "attempt": st.integers(0, 20),
        "index": st.integers(0, 20),
    }
)


@given(stream_parts, stream_parts)
def test_equal_parts_give_equal_streams_and_different_parts_different_ones(
    one: dict[str, object], other: dict[str, object]
) -> None:
    words = [make_stream(**parts).words(2).tolist() for parts in (one, other)]
    assert (words[0] == words[1]) == (one == other)


@pytest.mark.parametrize("name", ["round", "attempt", "index"])
@pytest.mark.parametrize("value", [-1, 1.0, True, None])
def test_parts_that_are_not_whole_numbers_are_refused(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=name):
        make_stream(**{name: value})


# The run key


def test_a_generated_key_is_fresh_and_a_seeded_one_is_marked_a_simulation() -> None:
    assert RunKey.generate() != RunKey.generate()
    assert not RunKey.generate().is_simulation
    assert RunKey.from_seed(1) == RunKey.from_seed(1)
    assert RunKey.from_seed(1) != RunKey.from_seed(2)
    assert RunKey.from_seed(1).is_simulation


@pytest.mark.parametrize("seed", [-1, 1.5, True])
def test_a_seed_must_be_a_whole_number(seed: int) -> None:
    with pytest.raises(ValueError, match="seed"):
        RunKey.from_seed(seed)


def test_a_key_never_shows_itself() -> None:
    secret = b"0123456789abcdef" * 2
    key = RunKey(secret, is_simulation=False)
    for shown in (repr(key), str(key), f"{key}", repr([key])):
        assert secret.decode() not in shown
        assert secret.hex() not in shown


@pytest.mark.parametrize("key", [RunKey.generate(), RunKey.from_seed(3)], ids=["fresh", "seeded"])
def test_a_saved_key_comes_back_with_its_mark_and_is_the_owners_alone(
    key: RunKey, tmp_path: Path
) -> None:
    path = tmp_path / "key"
    key.save(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert RunKey.load(path) == key
    assert RunKey.load(path).is_simulation == key.is_simulation
    assert list(tmp_path.iterdir()) == [path]


def test_a_key_file_of_the_wrong_size_or_kind_is_refused_without_showing_it(tmp_path: Path) -> None:
    path = tmp_path / "key"
    RunKey.from_seed(3).save(path)
    right = path.read_bytes()
    mark = len(right) - 33
    wrong = [b"", right[:-1], right + b"\0", right[1:], right[:mark] + b"\2" + right[mark + 1 :]]
    for data in wrong:
        path.write_bytes(data)
        with pytest.raises(ValueError, match="is not a run key") as caught:
            RunKey.load(path)
        assert right[-32:].hex() not in str(caught.value)
    with pytest.raises(ValueError, match="32 bytes, got 16"):
        RunKey(bytes(16), is_simulation=False)


def test_a_key_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "key"
    RunKey.generate().save(path)
    path.chmod(0o640)
    with pytest.raises(ValueError, match=r"mode 0600.*0640"):
        RunKey.load(path)


def test_a_key_is_never_replaced(tmp_path: Path) -> None:
    path = tmp_path / "key"
    RunKey.from_seed(1).save(path)
    with pytest.raises(ValueError, match="never replaced"):
        RunKey.from_seed(2).save(path)
    assert RunKey.load(path) == RunKey.from_seed(1)


def test_a_key_that_cannot_be_synced_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(fd: int) -> None:
        raise OSError("no space")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="no space"):
        RunKey.generate().save(tmp_path / "key")
    assert not list(tmp_path.iterdir())


def test_a_destroyed_key_is_overwritten_and_gone(tmp_path: Path) -> None:
    path, link = tmp_path / "key", tmp_path / "link"
    key = RunKey.generate()
    key.save(path)
    (tmp_path / ".key.partial").write_bytes(path.read_bytes())  # left by a crash
    os.link(path, link)
    RunKey.destroy(path)
    assert list(tmp_path.iterdir()) == [link]
    assert not any(link.read_bytes())
    RunKey.destroy(path)  # again, as after a crash


def test_an_hmac_depends_on_the_key_and_on_where_each_part_ends() -> None:
    key = RunKey.from_seed(1)
    codes = [
        key.hmac(b"ab", b"c"),
        key.hmac(b"a", b"bc"),
        key.hmac(b"abc"),
        key.hmac(b"abc", b""),
        key.hmac(),
        RunKey.from_seed(2).hmac(b"ab", b"c"),
    ]
    assert len(set(codes)) == len(codes)
    assert {len(code) for code in codes} == {32}
    assert key.hmac(b"ab", b"c") == codes[0]


# Digests of long data, and noise that is keyed by what it hides


def test_a_digest_is_the_hmac_of_gmac_tags() -> None:
    """Derived again by hand, so that a change, which would change all noise, is noticed."""
    secret = bytes(range(32))

    def encode(*parts: tuple[bytes, bytes]) -> bytes:
        return b"".join(kind + len(part).to_bytes(8, "big") + part for kind, part in parts)

    def derived(use: bytes) -> bytes:
        message = encode((b"s", b"tacit digest key, 1"), (b"s", use))
        return hmac.digest(secret, message, "sha256")

    gcm = Cipher(algorithms.AES(derived(b"GMAC")), modes.GCM(bytes(12))).encryptor()
    gcm.authenticate_additional_data(b"some long data")
    gcm.finalize()
    message = encode((b"s", b"tacit digest, 1"), (b"i", b"14"), (b"b", gcm.tag))
    expected = hmac.digest(derived(b"tags"), message, "sha256")[:16]
    assert RunKey(secret, is_simulation=True).digest(b"some long data") == expected


def test_a_digest_depends_on_the_key_on_every_byte_and_on_where_each_part_ends() -> None:
    key, data = RunKey.from_seed(1), bytes(100)
    changed = [data[:at] + b"\1" + data[at + 1 :] for at in range(100)]
    digests = [
        *(key.digest(one) for one in [data, data[:-1], data + b"\0", *changed]),
        key.digest(),
        key.digest(b""),
        key.digest(b"", b""),
        key.digest(data, b""),
        key.digest(b"", data),
        key.digest(data[:50], data[50:]),
        key.digest(data[:48], data[48:]),
        RunKey.from_seed(2).digest(data),
    ]
    assert len(set(digests)) == len(digests)
    assert {len(digest) for digest in digests} == {16}


def test_a_digest_reads_arrays_of_any_type_and_shape_as_their_bytes() -> None:
    key = RunKey.from_seed(1)
    values = np.arange(24, dtype=np.float32).reshape(4, 6)
    assert key.digest(values.data) == key.digest(values.tobytes())
    assert key.digest(np.zeros(0).data) == key.digest(b"")
    with pytest.raises(TypeError, match="contiguous"):
        key.digest(values[:, ::2].data)


@given(st.lists(st.binary(max_size=40), max_size=3), st.lists(st.binary(max_size=40), max_size=3))
def test_digests_of_data_in_chunks_are_equal_only_for_equal_parts(
    one: list[bytes], other: list[bytes]
) -> None:
    """With chunks of 16 bytes, so that most parts have several."""
    key = RunKey.from_seed(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(randomness, "_CHUNK", 16)
        assert (key.digest(*one) == key.digest(*other)) == (one == other)


def test_noise_that_hides_something_else_is_independent_and_the_same_is_the_same() -> None:
    key, other = RunKey.from_seed(1), RunKey.from_seed(2)
    first = key.hiding_stream(b"the sum", "noise", 3)
    again = key.hiding_stream(b"the sum", "noise", 3)
    np.testing.assert_array_equal(first.words(64), again.words(64))
    different = [
        other.hiding_stream(b"the sum", "noise", 3),
        key.hiding_stream(b"the sun", "noise", 3),
        key.hiding_stream(b"the sum", "rounding", 3),
        key.hiding_stream(b"the sum", "noise", 4),
        key.hiding_stream(b"the sumn", "oise", 3),
        key.stream(branch="the sum", round=0, attempt=0, purpose="noise", index=3),
    ]
    for stream in different:
        assert are_independent(key.hiding_stream(b"the sum", "noise", 3), stream)
    with pytest.raises(ValueError, match="index"):
        key.hiding_stream(b"the sum", "noise", -1)
