"""Building the kernel, choosing it, and doing without it."""

import os
import stat
from dataclasses import replace

import numpy as np
import pytest
import torch

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
    yield
    kernel.built_kernel.cache_clear()


@pytest.fixture
def library():
    """The kernel as the user's cache has it, so that it is built once for all tests."""
    found = kernel.built_kernel()
    if found is None:
        pytest.skip("no compiler")
    return found


def kernel_name():
    """Which form is chosen here."""
    return HandwrittenSGD(build("lstm", 23)).name


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
    assert kernel_name() == "torch"
    assert np.isfinite(one_step().weights()).all()
    with pytest.raises(ValueError, match="no compiler here builds the kernel"):
        HandwrittenSGD(build("lstm", 23), "c++")


def test_an_installation_without_the_sources_does_without_the_kernel(monkeypatch, tmp_path):
    nowhere = replace(kernel.SOURCE, files=(tmp_path / "nowhere.cpp",))
    monkeypatch.setattr(kernel, "SOURCE", nowhere)
    assert kernel_name() == "torch"


def test_a_compiler_that_fails_is_as_good_as_none(monkeypatch, tmp_path):
    failing = tmp_path / "failing"
    failing.write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    failing.chmod(0o755)
    monkeypatch.setenv("CXX", str(failing))
    monkeypatch.setenv("TACIT_CACHE", str(tmp_path))
    assert kernel_name() == "torch"
    assert list((tmp_path / "kernels").glob("*.so")) == []


def test_a_broken_library_in_the_cache_is_passed_by(monkeypatch, tmp_path, library):
    monkeypatch.setenv("TACIT_CACHE", str(tmp_path))
    digest = library.digest
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / f"step-{digest}.so").write_bytes(b"not a library")
    built = []
    monkeypatch.setattr(native, "_compiled", _noting(built, native._compiled, library))
    kernel.built_kernel.cache_clear()
    assert kernel.built_kernel().digest == library.digest
    assert built[0] == tmp_path / "kernels"
    assert built[1] != built[0]


def test_a_cache_that_cannot_be_written_to_is_passed_by(monkeypatch, tmp_path, library):
    (tmp_path / "kernels").write_text("a file where the folder should be", encoding="utf-8")
    monkeypatch.setenv("TACIT_CACHE", str(tmp_path))
    assert library.digest  # it was built before, and is not built again
    built = [None]
    monkeypatch.setattr(native, "_compiled", _noting(built, native._compiled, library))
    kernel.built_kernel.cache_clear()
    assert kernel_name() == f"c++ {library.digest}"
    assert not built[1].is_relative_to(tmp_path)
    assert stat.S_IMODE(os.stat(built[1]).st_mode) == 0o700


def _noting(folders, build_in, library):
    """`_compiled` that notes the folder and takes the second time what was built before."""

    def noting(source, compiler, digest, folder):
        folders.append(folder)
        if len(folders) == 1:
            return build_in(source, compiler, digest, folder)
        return os.path.realpath(library.functions._name)

    return noting


def test_the_kernel_agrees_with_plain_torch_operations(library):
    assert kernel._agrees(library)


def test_a_kernel_that_computes_wrongly_is_as_good_as_none(monkeypatch, library):
    step = kernel.TorchStep.step
    monkeypatch.setattr(kernel.TorchStep, "step", lambda self, *args: 1.001 * step(self, *args))
    kernel.built_kernel.cache_clear()
    assert kernel.built_kernel() is None
    assert kernel_name() == "torch"


def test_the_choice_can_be_made_by_hand(monkeypatch, library):
    for wanted, name in (("torch", "torch"), ("c++", f"c++ {library.digest}")):
        monkeypatch.setenv("TACIT_KERNEL", wanted)
        assert kernel_name() == name
        assert one_step().name == name
    monkeypatch.setenv("TACIT_KERNEL", "fortran")
    with pytest.raises(ValueError, match="TACIT_KERNEL must be torch or c"):
        kernel_name()


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
