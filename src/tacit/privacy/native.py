"""Our own C++: built on first use where there is a compiler.

Nothing needs a compiler: a caller that asks for a library has to do without it where there is no
compiler, or one that fails.  What was built is kept in the user's cache, under a name made of the
sources, the flags, the compiler's version and the processor: all that the bits of a result may
depend on.

Guarantee: a library is loaded only if nobody but this user (or root) could have written it.  A
cache that others may write to is passed by, and a library built for this process alone.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tacit.privacy import durable, scratch, trusted

_BUILD_SECONDS = 120


@dataclass(frozen=True)
class Source:
    """What is built: files, of which the first is compiled and the others are read by it."""

    name: str
    files: tuple[Path, ...]
    flags: tuple[str, ...]
    functions: tuple[str, ...] = ()  # without which a library is of no use


@dataclass(frozen=True)
class Library:
    """What was built, loaded."""

    digest: str
    functions: ctypes.CDLL


def build(source: Source) -> Library | None:
    """The library, built now if it was not before; None where it cannot be."""
    compiler = _compiler()
    if compiler is None:
        return None
    try:
        digest = _digest_of(source, compiler)
    except FileNotFoundError:  # an installation that left the sources out
        return None
    for folder in (_cache_folder, scratch.of_this_process):
        try:
            library = _loaded(_compiled(source, compiler, digest, folder()))
            if all(hasattr(library, function) for function in source.functions):
                return Library(digest, library)
        except subprocess.SubprocessError:
            return None  # another folder would not help
        except (OSError, ValueError):  # cannot be written to, or holds what cannot be trusted
            continue
    return None


def _cache_folder() -> Path:
    """Where what was built is kept."""
    return durable.own_folder(durable.user_folder("cache") / "kernels")


def _digest_of(source: Source, compiler: list[str]) -> str:
    """A name for all that the bits of a result may depend on."""
    digest = hashlib.sha256()
    for file in source.files:
        digest.update(file.read_bytes())
    with suppress(OSError, subprocess.SubprocessError):
        version = [*compiler, "--version"]
        digest.update(subprocess.run(version, capture_output=True, timeout=10, check=True).stdout)
    digest.update(repr((compiler[1:], source.flags, _processor())).encode())
    return digest.hexdigest()[:12]


def _compiler() -> list[str] | None:
    """The command line of a C++ compiler: `$CXX`, or one under a usual name; None without one."""
    asked = shlex.split(os.environ.get("CXX", ""))
    for candidate in ([asked] if asked else []) + [["c++"], ["g++"], ["clang++"]]:
        if program := shutil.which(candidate[0]):
            return [program, *candidate[1:]]
    return None


def _processor() -> str:
    """What `-march=native` looks at, so that a cache on a shared disk serves several machines."""
    facts = {platform.machine(), platform.processor()}
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        kept = ("model name", "flags", "Features", "CPU part")
        facts |= {line for line in lines if line.startswith(kept)}
    return "\n".join(sorted(facts))


def _compiled(source: Source, compiler: list[str], digest: str, folder: Path) -> Path:
    """The library's file in a folder, compiled now if it is not there yet, or not ours alone.

    One process compiles it, and the others wait.
    """
    path = folder / f"{source.name}-{digest}.so"
    if _is_ours(path):
        return path
    with durable.locked(folder / f".{path.name}.lock"):
        if not _is_ours(path):
            with durable.whole_file(path) as file:
                fresh = durable.partial_path(path).with_suffix(".so")
                command = [*compiler, *source.flags, str(source.files[0]), "-o", str(fresh)]
                try:
                    subprocess.run(
                        command,
                        capture_output=True,
                        timeout=_BUILD_SECONDS,
                        check=True,
                        umask=0o077,
                    )
                    file.write(fresh.read_bytes())
                finally:
                    fresh.unlink(missing_ok=True)
    return path


def _is_ours(path: Path) -> bool:
    """Whether a file is there that nobody else could have written."""
    return path.exists() and trusted.is_of_this_user_alone(path.lstat())


def _loaded(path: Path) -> ctypes.CDLL:
    """The library at a path, if it is ours alone.

    What is looked at is what is loaded: the open file, which nobody can exchange.  It stays open,
    since the system takes two libraries of one name for one.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    if not trusted.is_of_this_user_alone(os.fstat(descriptor)):
        os.close(descriptor)
        raise PermissionError(f"{path} belongs to another user, or others may write to it")
    opened = Path(f"/proc/self/fd/{descriptor}")
    return ctypes.CDLL(str(opened if opened.exists() else path))
