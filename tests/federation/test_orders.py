"""What goes over the wire: every field of it, and nothing of anything else."""

import dataclasses
import json

import numpy as np
import pytest

flower = pytest.importorskip("tacit.federation.flower", exc_type=ImportError)

from tacit.federated.cohort import CohortJob, CohortTask, RemoteUsers  # noqa: E402
from tacit.federated.user_update import FedAvg, FedSGD  # noqa: E402
from tacit.federation.orders import (  # noqa: E402
    Answer,
    Order,
    addressed,
    pack,
    public_fields,
    unpack,
    width_of,
)
from tacit.kernels.sampled_softmax import SampledSoftmax  # noqa: E402
from tacit.mechanisms.fixed_point import WHOLE_WEIGHT, Contribution  # noqa: E402
from tacit.models import registry  # noqa: E402
from tacit.models.base import to_vector  # noqa: E402
from tacit.privacy.randomness import RunKey  # noqa: E402
from tacit.tokenizers import build, provenance  # noqa: E402
from tests.federation.test_bounds import plan  # noqa: E402
from tests.runs.small import WORDS  # noqa: E402

KEY = RunKey(bytes(range(32)), is_simulation=True)
SIZE, WIDTH = 6, 5
FEDAVG = FedAvg(learning_rate=0.1, sampled_softmax=SampledSoftmax(5), shuffle=True)


def order(update=FEDAVG, **changes) -> Order:
    tokenizer = build.word_level(WORDS, provenance=provenance.public("a list in the tests"))
    model = registry.build("lstm", tokenizer.vocab_size, embedding_size=4, cells=5)
    users = RemoteUsers(None, tokenizer, 400)
    task = CohortTask(plan(layers=None), update, tokenizer.bos, users)
    job = CohortJob(to_vector(model), task.plan.initial_clip_state(), KEY, "main", 7, 1)
    return dataclasses.replace(Order.of("a run", task, job, model), **changes)


def message(update=FEDAVG):
    return addressed(order(update).shared(), bytes(range(32)))


def test_these_are_all_the_fields_of_an_order():
    """Public values, the model, the tokenizer, and the client's own seed: no code, no text of
    anybody, no key, and nothing about other clients."""
    assert public_fields(message()) == {
        "order": sorted(
            "attempt bos clip_norms clip_round format max_tokens_per_user model plan round run"
            " update".split()
        ),
        "model": ["weights"],
        "tokenizer": ["file"],
        "own": ["seed"],
    }


def test_these_are_all_the_fields_of_an_answer():
    """The update on the grid, its weight and clip bits: no loss, no count of anything, no norm."""
    content = answer().to_content(WIDTH)
    assert public_fields(content) == {
        "update": ["units"],
        "bits": ["units"],
        "answer": ["attempt", "round", "weight"],
    }


def test_the_run_key_is_in_no_part_of_an_order():
    content = message()
    seen = b"".join(
        [array.data for name in ("model", "tokenizer") for array in content[name].values()]
        + [str(content["order"]["json"]).encode(), content["own"]["seed"]]
    )
    assert bytes(range(32)) in seen  # the search finds what is there: here the seed is the key
    other = addressed(order().shared(), b"\xff" * 32)
    seen = b"".join(
        [array.data for name in ("model", "tokenizer") for array in other[name].values()]
        + [str(other["order"]["json"]).encode(), other["own"]["seed"]]
    )
    assert bytes(range(32)) not in seen


def test_a_seed_makes_the_stream_that_the_simulation_has():
    job = CohortJob(np.zeros(1, np.float32), plan().initial_clip_state(), KEY, "main", 7, 1)
    ours = order(seed=job.seed("someone")).stream("whoever")
    assert (ours.words(9) == job.stream("someone").words(9)).all()
    assert (ours.words(9) != job.stream("another").words(9)).any()


@pytest.mark.parametrize("update", [FEDAVG, FedSGD(learning_rate=1.0, batch_size=3)])
def test_an_order_is_read_as_it_was_written(update):
    written, read = order(update, seed=bytes(range(32))), Order.read(message(update))
    assert (read.plan, read.update, read.model) == (written.plan, update, written.model)
    assert (read.weights == written.weights).all()
    assert read.read_tokenizer().fingerprint == written.read_tokenizer().fingerprint
    assert read.digest == written.digest


def test_the_digest_of_an_order_changes_with_each_part():
    base = order(seed=bytes(32))
    other = base.weights.copy()
    other[0] += 1
    changed = [
        dataclasses.replace(base, **part)
        for part in (
            {"round": 8},
            {"attempt": 0},
            {"run": "b"},
            {"weights": other},
            {"seed": b"1" * 32},
            {"bos": 5},
            {"plan": plan(layers=None, population=101)},
        )
    ]
    assert len({one.digest for one in [base, *changed]}) == 1 + len(changed)


def test_orders_that_this_installation_does_not_know_are_refused():
    def edited(**values):
        content = message()
        public = json.loads(str(content["order"]["json"])) | values
        content["order"] = flower.ConfigRecord({"json": json.dumps(public)})
        return content

    own = {"kind": "own", "factory": "os:system", "vocab_size": 9, "options": {}}
    for bad, said in (
        (edited(format="tacit order 2"), "reads orders of"),
        (edited(model=own), "unknown model 'own'"),
        (edited(update={"kind": "shell"}), "unknown model"),
        (edited(plan={"kind": "round-plan"}), "needs the fields"),
        (edited(code="import os"), "code"),
        (edited(round="7"), "round"),
    ):
        with pytest.raises(ValueError, match=said):
            Order.read(bad)
    content = message()
    content["app"] = flower.ConfigRecord({"code": "import os"})
    with pytest.raises(ValueError, match="an order has the records"):
        Order.read(content)


# Answers.


def answer(**changes) -> Answer:
    units = np.array([0, 1, -1, 2**36 - 1, -(2**36) + 1, 77], np.int64)
    return Answer(7, 1, Contribution(units, WHOLE_WEIGHT, np.array([8], np.int64)))


def test_an_answer_is_read_as_it_was_written():
    read = Answer.read(answer().to_content(WIDTH), SIZE, 1, WIDTH)
    own, other = answer().contribution, read.contribution
    assert (own.update == other.update).all()
    assert (own.bits == other.bits).all()
    assert (own.weight, read.round, read.attempt) == (other.weight, 7, 1)


@pytest.mark.parametrize("limit", [2**8, 2**30, 2**36, 2**55, 2**61])
def test_integers_within_the_limit_survive_packing(limit):
    width = width_of(limit)
    values = np.array([0, 1, -1, limit - 1, 1 - limit, limit // 3], np.int64)
    assert (unpack(pack(values, width), width) == values).all()
    assert width == 8 or limit > 1 << (8 * (width - 1) - 2)  # and no byte is wasted


def test_a_coordinate_takes_five_bytes_on_the_finest_grid():
    assert width_of(1 << 36) == 5


def hostile(**arrays):
    content = answer().to_content(WIDTH)
    for name, array in arrays.items():
        content[name] = flower.ArrayRecord({"units": array})
    return content


def claimed(shape: str) -> object:
    """An array whose header says more than there is."""
    data = bytearray(answer().to_content(WIDTH)["update"]["units"].data)
    header = bytes(data[:128]).replace(b"(30,)", shape.encode().ljust(5))
    return flower.Array(dtype="uint8", shape=(30,), stype="numpy.ndarray", data=header + data[128:])


@pytest.mark.parametrize(
    "array",
    [
        flower.Array(np.full(SIZE, np.nan)),
        flower.Array(np.full(SIZE * WIDTH, np.nan, np.float32)),
        flower.Array(np.zeros(SIZE * WIDTH + 1, np.uint8)),
        flower.Array(np.zeros(SIZE * WIDTH - 1, np.uint8)),
        flower.Array(np.zeros((SIZE, WIDTH), np.uint8)),
        flower.Array(np.zeros(SIZE * WIDTH, np.int8)),
        claimed("(9e9,"),
        claimed("(99,)"),
        flower.Array(dtype="uint8", shape=(30,), stype="numpy.ndarray", data=b"x" * 158),
    ],
)
def test_an_update_of_another_shape_or_type_is_refused(array):
    with pytest.raises(ValueError, match="update must be one flat array of 30 values of uint8"):
        Answer.read(hostile(update=array), SIZE, 1, WIDTH)


def test_an_answer_with_other_fields_is_refused():
    for name, values in (
        ("answer", {"round": 7, "attempt": 1, "weight": 0.5}),
        ("answer", {"round": 7, "attempt": 1, "weight": 1, "loss": 2.0}),
        ("norms", {"norm": 1.0}),
    ):
        content = answer().to_content(WIDTH)
        content[name] = flower.ConfigRecord(values)
        with pytest.raises(ValueError, match="an answer has"):
            Answer.read(content, SIZE, 1, WIDTH)
