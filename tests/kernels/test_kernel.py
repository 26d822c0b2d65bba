"""Building the kernel, choosing it, and doing without it."""

import os
import stat
from dataclasses import replace

import numpy as np
import pytest
import torch

from tacit.kernels import handwritten
from tacit.kernels import handwritten as kernel
from tacit.kernels.handwritten import HandwrittenSGD
from tacit.kernels.rows import TokenRows
from tacit.models.base import to_vector
from tacit.models.registry import build
from tacit.privacy import native


@pytest.fixture(autouse=True)
def nothing_remembered(monkeypatch):
    """What was built and chosen is asked for anew in every test, whatever the environment says."""
    monkeypatch.delenv("TACIT_KERNEL", raising=False)
    kernel.built_kernel.cache_clear()
    kernel.chosen_kernel.cache_clear()
    yield
    kernel.built_kernel.cache_clear()
    kernel.chosen_kernel.cache_clear()


@pytest.fixture
def library():
    """The kernel as the user's cache has it, so that it is built once for all tests."""
    found = kernel.built_kernel()
    if found is None:
        pytest.skip("no compiler")
    return found


def one_step():
    model = build("lstm", 23, embedding_size=6, cells=10)
    sgd = HandwrittenSGD(model)
    sgd.load(to_vector(model))
    tokens = torch.arange(12).view(3, 4)
    sgd.step(TokenRows(tokens, tokens + 1, torch.ones_like(tokens, dtype=torch.bool)), 1.0)
    return sgd


def test_without_a_compiler_plain_torch_operations_are_used(monkeypatch):
    monkeypatch.setattr(native.shutil, "which", lambda name: None)
    assert kernel.built_kernel() is None
    assert handwritten.kernel_name() == "torch"
    assert np.isfinite(one_step().weights()).all()
    with pytest.raises(ValueError, match="no compiler here builds the kernel"):
        HandwrittenSGD(build("lstm", 23), "c++")


def test_an_installation_without_the_sources_does_without_the_kernel(monkeypatch, tmp_path):
    nowhere = replace(kernel.SOURCE, files=(tmp_path / "nowhere.cpp",))
    monkeypatch.setattr(kernel, "SOURCE", nowhere)
    assert handwritten.kernel_name() == "torch"


def test_a_compiler_that_fails_is_as_good_as_none(monkeypatch, tmp_path):
    failing = tmp_path / "failing"
    failing.write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    failing.chmod(0o755)
    monkeypatch.setenv("CXX", str(failing))
    monkeypatch.setenv("TACIT_CACHE", str(tmp_path))
    assert handwritten.kernel_name() == "torch"
    assert list((tmp_path / "kernels").iterdir()) == []


def test_a_broken_library_in_the_cache_is_passed_by(monkeypatch, tmp_path, library):
    monkeypatch.setenv("TACIT_CACHE", str(tmp_path))
    digest = library.name.split()[1]
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / f"step-{digest}.so").write_bytes(b"not a library")
    built = []
    monkeypatch.setattr(native, "_compiled", _noting(built, native._compiled, library))
    kernel.built_kernel.cache_clear()
    assert kernel.built_kernel().name == library.name
    assert built[0] == tmp_path / "kernels"
    assert built[1] != built[0]


def test_a_cache_that_cannot_be_written_to_is_passed_by(monkeypatch, tmp_path, library):
    (tmp_path / "kernels").write_text("a file where the folder should be", encoding="utf-8")
    monkeypatch.setenv("TACIT_CACHE", str(tmp_path))
    built = []
    monkeypatch.setattr(native, "_compiled", _noting(built, native._compiled, library))
    kernel.built_kernel.cache_clear()
    assert handwritten.kernel_name() == library.name
    assert built[1] != built[0]
    assert stat.S_IMODE(os.stat(built[1]).st_mode) == 0o700


def _noting(folders, build_in, library):
    """`_compiled` that notes the folder and takes the second time what was built before."""

    def noting(source, compiler, digest, folder):
        folders.append(folder)
        if len(folders) == 1:
            return build_in(source, compiler, digest, folder)
        return library.library._name

    return noting


@pytest.mark.parametrize(("is_right", "gain", "taken"), [(1, 2, 1), (1, 0.5, 0), (0, 2, 0)])
def test_the_choice_is_made_once_and_kept(monkeypatch, tmp_path, library, is_right, gain, taken):
    monkeypatch.setenv("TACIT_CACHE", str(tmp_path))
    (tmp_path / "kernels").mkdir()
    monkeypatch.setattr(kernel, "_trial", lambda _: (bool(is_right), gain))
    assert kernel._is_chosen(library) == taken
    monkeypatch.setattr(kernel, "_trial", lambda _: pytest.fail("a second trial"))
    assert kernel._is_chosen(library) == taken
    assert len(list((tmp_path / "kernels").iterdir())) == 1


def test_the_kernel_agrees_with_plain_torch_operations_in_the_trial(library):
    threads = torch.get_num_threads()
    is_right, gain = kernel._trial(library)
    assert is_right
    assert gain > 0
    assert torch.get_num_threads() == threads


def test_the_choice_can_be_made_by_hand(monkeypatch, library):
    for wanted, name in (("torch", "torch"), ("c++", library.name)):
        monkeypatch.setenv("TACIT_KERNEL", wanted)
        kernel.chosen_kernel.cache_clear()
        assert handwritten.kernel_name() == name
        assert one_step().name == name
    monkeypatch.setenv("TACIT_KERNEL", "fortran")
    kernel.chosen_kernel.cache_clear()
    with pytest.raises(ValueError, match="TACIT_KERNEL must be torch or c"):
        handwritten.kernel_name()


def test_the_name_changes_with_whatever_may_change_the_bits(monkeypatch):
    source = kernel.SOURCE
    names = {native._digest_of(source, ["c++"]), native._digest_of(source, ["c++", "-m64"])}
    names.add(native._digest_of(replace(source, flags=(*source.flags, "-O1")), ["c++"]))
    monkeypatch.setattr(native, "_processor", lambda: "another")
    names.add(native._digest_of(source, ["c++"]))
    assert len(names) == 4


def test_denormal_numbers_are_left_alone_outside_of_the_kernel(monkeypatch, library):
    monkeypatch.setenv("TACIT_KERNEL", "c++")
    one_step()
    assert np.float32(1e-40) * np.float32(0.5) > 0
    assert float(torch.tensor([1e-40]) * 0.5) > 0
