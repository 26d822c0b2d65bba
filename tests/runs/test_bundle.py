"""A bundle's claim is its run's, whatever the ledger holds."""

from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.privacy.events import Adjacency, PoissonGaussian
from tacit.privacy.guarantee import Guarantee
from tacit.privacy.ledger import Ledger
from tacit.privacy.ledger_lines import Header
from tacit.runs.bundle import Bundle, sealed_ledger
from tests.report.test_projection import PUBLIC, made_ledger
from tests.report.test_projection import WORD_EVENTS as WORDS

FILES = st.dictionaries(
    st.sampled_from(["model.safetensors", "tokenizer.json", "README.md", "experiment.toml"]),
    st.binary(max_size=40),
    min_size=1,
)


@settings(max_examples=30)
@given(
    st.lists(st.floats(0.3, 5.0), min_size=1, max_size=3),
    st.lists(WORDS, max_size=2),
    st.booleans(),
    st.booleans(),
    FILES,
    st.data(),
)
def test_a_bundle_claims_what_its_run_claims_and_notices_any_changed_byte(
    noises, words, simulation, counted, files, data
):
    header = Header(
        "11",
        "user",
        1000,
        1e-5,
        adjacency=Adjacency.ADD_REMOVE,
        simulation=simulation,
        population_is_counted=counted,
        excluded=("something of this run alone",),
        public_inputs=PUBLIC,
    )
    with TemporaryDirectory() as name:
        folder, bundle = Path(name), Path(name) / "bundle"
        rounds = [PoissonGaussian(0.01, z) for z in noises]
        ledger = made_ledger(folder, header, words, rounds)
        lines = ledger.path.read_bytes()
        bundle.mkdir()
        for file, content in files.items():
            (bundle / file).write_bytes(content)
        sealed = sealed_ledger(lines, Ledger(ledger.path, lines), files, len(noises))
        (bundle / "ledger.jsonl").write_bytes(sealed)
        assert Bundle.open(bundle).guarantee() == Guarantee.of(Ledger.read(ledger.path))
        assert Bundle.open(bundle).guarantee().claim == Guarantee.of(ledger).claim
        changed = data.draw(st.sampled_from(sorted(files)))
        (bundle / changed).write_bytes(files[changed] + b"!")
        [fault] = Bundle(bundle, Ledger.read(bundle / "ledger.jsonl")).faults()
        assert changed in fault
