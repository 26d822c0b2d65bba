"""What the server sends to a client, what the client answers, and every field of both.

An *order* is all that an update is computed from besides the client's own text:

    order          JSON: the run, the round and the attempt; the model's kind and sizes, the plan,
                   the user's update, the clip norms, how text is cut: public, and no code
    model.weights  float32: the released model
    tokenizer      the released tokenizer, as the bytes of its file
    own.seed       32 bytes, from which the client's own stream of this attempt is made

An *answer* is the client's contribution on the round's grid, and no loss, no count and no norm:

    update         each coordinate as a signed integer of `width` bytes
    bits           the clip bits, a byte each; none without adaptive clipping
    answer         the weight, in units of 2^-30, and which round and attempt it is for

A silo's answer has the same fields: each is the sum over those of its people who take part, with
more bytes for a coordinate, and eight for a clip bit.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self, TypedDict

import numpy as np
from numpy.typing import NDArray

from tacit.federated.cohort import CohortJob, CohortTask, RemoteUsers
from tacit.federated.user_update import FedAvg, FedSGD
from tacit.federation.flower import Array, ArrayRecord, ConfigRecord, RecordDict
from tacit.mechanisms.clipping import ClipState
from tacit.mechanisms.fixed_point import Contribution
from tacit.mechanisms.plan import RoundPlan
from tacit.models.base import LanguageModel, ModelConfig
from tacit.models.registry import NAMES, make_config
from tacit.privacy import documents
from tacit.privacy.records import canonical_json
from tacit.privacy.stream import Stream
from tacit.tokenizers.tokenizer import Tokenizer

FORMAT = "tacit order 1"
_UPDATES: dict[str, type[FedAvg] | type[FedSGD]] = {"fedavg": FedAvg, "fedsgd": FedSGD}


class _Public(TypedDict):
    """The JSON of an order."""

    format: str
    run: str
    round: int
    attempt: int
    model: dict[str, Any]
    plan: dict[str, Any]
    update: dict[str, Any]
    clip_norms: list[float]
    clip_round: int
    bos: int
    max_tokens_per_user: int | None


@dataclass(frozen=True)
class Order:
    """What a client is to compute, by public values; `seed` is the client's own."""

    run: str
    round: int
    attempt: int
    model: ModelConfig
    plan: RoundPlan
    update: FedAvg | FedSGD
    clip_state: ClipState
    bos: int
    max_tokens_per_user: int | None
    weights: NDArray[np.float32]
    tokenizer: bytes  # of its file
    seed: bytes = b""

    def __repr__(self) -> str:
        return f"Order(run={self.run!r}, round={self.round}, attempt={self.attempt})"

    @classmethod
    def of(cls, run: str, task: CohortTask, job: CohortJob, model: LanguageModel) -> Self:
        """The order of one attempt at a round, the same for all clients; it has no seed yet."""
        users = task.users
        if not isinstance(users, RemoteUsers):
            raise ValueError("the users of a federated training must be enrolled people")
        return cls(
            run=run,
            round=job.round,
            attempt=job.attempt,
            model=model.config,
            plan=task.plan,
            update=task.update,
            clip_state=job.clip_state,
            bos=task.bos,
            max_tokens_per_user=users.max_tokens_per_user,
            weights=job.weights,
            tokenizer=users.tokenizer.to_json().encode(),
        )

    # The update is computed from an order as from a job of a cohort.

    def stream(self, user_key: str) -> Stream:
        """The client's own stream: there is no other user here."""
        return Stream(self.seed)

    def task(self, users: Any) -> CohortTask:
        """What these users compute."""
        return CohortTask(self.plan, self.update, self.bos, users)

    @cached_property
    def digest(self) -> str:
        """Of all that an answer is computed from, so that the same order is known again."""
        digest = hashlib.sha256()
        for part in (self._public().encode(), self.weights, self.tokenizer, self.seed):
            data = memoryview(part).cast("B")  # type: ignore[arg-type]  # an array is a buffer
            digest.update(data.nbytes.to_bytes(8, "big"))
            digest.update(data)
        return digest.hexdigest()

    def read_tokenizer(self) -> Tokenizer:
        """The tokenizer; `ValueError` if it is none."""
        return Tokenizer.from_json(self.tokenizer.decode())

    # On the way.

    def shared(self) -> dict[str, ArrayRecord | ConfigRecord]:
        """The records that all clients are sent: the same objects, so that they are kept once."""
        return {
            "order": ConfigRecord({"json": self._public()}),
            "model": ArrayRecord({"weights": Array(self.weights)}),
            "tokenizer": ArrayRecord({"file": Array(np.frombuffer(self.tokenizer, np.uint8))}),
        }

    def _public(self) -> str:
        kind = "fedsgd" if isinstance(self.update, FedSGD) else "fedavg"
        sizes = {f.name: getattr(self.model, f.name) for f in dataclasses.fields(self.model)}
        public: _Public = {
            "format": FORMAT,
            "run": self.run,
            "round": self.round,
            "attempt": self.attempt,
            "model": {"kind": self.model.kind, **sizes},
            "plan": self.plan.to_json(),
            "update": {"kind": kind, **self.update.to_json()},
            "clip_norms": list(self.clip_state.norms),
            "clip_round": self.clip_state.round,
            "bos": self.bos,
            "max_tokens_per_user": self.max_tokens_per_user,
        }
        return canonical_json(public)

    @classmethod
    def read(cls, content: RecordDict) -> Self:
        """The order in a message; `ValueError` for anything that is none."""
        names = {"order", "model", "tokenizer", "own"}
        if set(content) != names:
            raise ValueError(f"an order has the records {sorted(names)}, got {sorted(content)}")
        parsed = documents.parse_json(str(_config(content, "order")["json"]), "the order")
        public = documents.fitted(parsed, _Public, "the order")
        if parsed.keys() != _Public.__annotations__.keys():
            raise ValueError(f"an order has no fields but its own, got {sorted(parsed)}")
        if public["format"] != FORMAT:
            raise ValueError(f"this tacit reads orders of {FORMAT!r}, got {public['format']!r}")
        model, update = dict(public["model"]), dict(public["update"])
        kind, rule = model.pop("kind", None), update.pop("kind", None)
        if kind not in NAMES or rule not in _UPDATES:
            raise ValueError(f"unknown model {kind!r} or update {rule!r} in an order")
        seed = _config(content, "own")["seed"]
        if not isinstance(seed, bytes) or len(seed) != 32:
            raise ValueError("the seed of an order must have 32 bytes")
        return cls(
            run=public["run"],
            round=public["round"],
            attempt=public["attempt"],
            model=make_config(kind, model.pop("vocab_size"), **model),
            plan=RoundPlan.from_json(public["plan"]),
            update=_UPDATES[rule].from_json(update),
            clip_state=ClipState(tuple(public["clip_norms"]), public["clip_round"]),
            bos=public["bos"],
            max_tokens_per_user=public["max_tokens_per_user"],
            weights=_array(content, "model", "weights", np.float32),
            tokenizer=_array(content, "tokenizer", "file", np.uint8).tobytes(),
            seed=seed,
        )


def addressed(shared: dict[str, ArrayRecord | ConfigRecord], seed: bytes) -> RecordDict:
    """The content of the message to one client, whose stream is made from `seed`."""
    return RecordDict({**shared, "own": ConfigRecord({"seed": seed})})


# Answers.


@dataclass(frozen=True)
class Answer:
    """One client's contribution to one attempt at a round; a silo's is a sum of many people's."""

    round: int
    attempt: int
    contribution: Contribution

    def to_content(self, width: int, people: int = 1) -> RecordDict:
        """What is sent; `width` is the public number of bytes of a coordinate."""
        own = self.contribution
        return RecordDict(
            {
                "update": ArrayRecord({"units": Array(pack(own.update, width))}),
                "bits": ArrayRecord({"units": Array(own.bits.astype(_bits_type(people)))}),
                "answer": ConfigRecord(
                    {"round": self.round, "attempt": self.attempt, "weight": own.weight}
                ),
            }
        )

    @classmethod
    def read(cls, content: RecordDict, size: int, bits: int, width: int, people: int = 1) -> Self:
        """The answer in a message; `ValueError` for anything else than these fields and sizes."""
        names = {"update", "bits", "answer"}
        if set(content) != names:
            raise ValueError(f"an answer has the records {sorted(names)}, got {sorted(content)}")
        fields = dict(_config(content, "answer"))
        if fields.keys() != {"round", "attempt", "weight"} or not all(
            type(value) is int for value in fields.values()
        ):
            raise ValueError("an answer has three whole numbers: round, attempt and weight")
        packed = _array(content, "update", "units", np.uint8, size * width)
        units = _array(content, "bits", "units", _bits_type(people), bits)
        contribution = Contribution(
            unpack(packed, width), int(fields["weight"]), units.astype(np.int64)
        )
        return cls(int(fields["round"]), int(fields["attempt"]), contribution)


def _bits_type(people: int) -> Any:
    """What the clip bits of so many people, at most, are sent as."""
    return np.int8 if people == 1 else np.int64


def width_of(limit: int) -> int:
    """Bytes that hold every integer strictly between -limit and limit, with its sign."""
    return min(8, math.ceil((limit.bit_length() + 1) / 8))


def pack(values: NDArray[np.int64], width: int) -> NDArray[np.uint8]:
    """The low `width` bytes of each integer, in the order of little-endian machines."""
    every = np.ascontiguousarray(values, "<i8").view(np.uint8).reshape(-1, 8)
    return np.ascontiguousarray(every[:, :width]).reshape(-1)


def unpack(packed: NDArray[np.uint8], width: int) -> NDArray[np.int64]:
    """The integers that `pack` was given, if they fit."""
    every = np.zeros((len(packed) // width, 8), np.uint8)
    every[:, 8 - width :] = packed.reshape(-1, width)
    shifted = every.reshape(-1).view("<i8").astype(np.int64, copy=False)
    return shifted >> (8 * (8 - width))  # keeps the sign


def answer_bytes(size: int, width: int) -> int:
    """About how many bytes an answer has on the way."""
    return size * width + 4096


def to_record(data: bytes) -> ArrayRecord:
    """Bytes of any length, as `from_record` reads them."""
    return ArrayRecord({"bytes": Array(np.frombuffer(data, np.uint8))})


def from_record(content: RecordDict, record: str) -> bytes:
    """The bytes in a record; `ValueError` if it holds anything else."""
    return _array(content, record, "bytes", np.uint8).tobytes()


def _config(content: RecordDict, name: str) -> ConfigRecord:
    record = content[name]
    if not isinstance(record, ConfigRecord):
        raise ValueError(f"the record {name!r} must hold values, got {type(record).__name__}")
    return record


def _array(
    content: RecordDict, record: str, name: str, dtype: Any, size: int | None = None
) -> NDArray[Any]:
    """The one flat array of a record, of `size` values if that is given.

    The header that NumPy wrote has to be the very one for this type and number, so that nobody can
    make this process set aside memory for more than was sent.
    """
    arrays = content[record]
    if not isinstance(arrays, ArrayRecord) or set(arrays) != {name}:
        raise ValueError(f"the record {record!r} must hold the array {name!r} alone")
    kind, data = np.dtype(dtype), arrays[name].data
    values = max(0, len(data) - _HEADER) // kind.itemsize
    expected = values if size is None else size
    header = _npy_header(kind, expected)
    if len(data) != len(header) + expected * kind.itemsize or not data.startswith(header):
        wanted = "values" if size is None else f"{size} values"
        raise ValueError(f"{record} must be one flat array of {wanted} of {kind}, and is not")
    return np.frombuffer(data, kind, offset=len(header))


_HEADER = 128  # bytes before the values of a flat array, as `np.save` writes it


def _npy_header(kind: np.dtype[Any], length: int) -> bytes:
    described = np.lib.format.dtype_to_descr(kind)
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        buffer, {"descr": described, "fortran_order": False, "shape": (length,)}
    )
    return buffer.getvalue()


def public_fields(content: RecordDict) -> dict[str, list[str]]:
    """The fields of a message, by record: what goes over the wire, for people to read."""
    listed = {name: sorted(record) for name, record in content.items()}
    if "order" in listed:
        listed["order"] = sorted(json.loads(str(_config(content, "order")["json"])))
    return listed
