"""The optional compiled kernels; everything else is in pyproject.toml.

Environment:
    PREFIXHASH_BUILD: `auto` (default: what cannot be built is left out), `pure` (nothing is built),
        `native` (what cannot be built is an error).
    PREFIXHASH_FEATURES: libraries to build on, of `openssl` and `xxhash`, separated by commas, or
        `none`; each must be there. Unset: those that are there.
"""

from __future__ import annotations

import os
import runpy
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py
from setuptools.errors import CCompilerError, ExecError, PlatformError, SetupError

HOME = Path("prefixhash", "_compiled")
SOURCES = HOME / "_c"
TWINS: dict[str, tuple[str, ...]] = runpy.run_path(str(HOME / "twins.py"))["TWINS"]

# Feature -> pkg-config name, libraries where there is no pkg-config, a program that needs it.
FEATURES = {
    "openssl": (
        "libcrypto",
        ["crypto"],
        "#define OPENSSL_SUPPRESS_DEPRECATED\n#include <openssl/sha.h>\n"
        "int main(void) { SHA256_CTX c; return SHA256_Init(&c) == 1 && c.h[0] ? 0 : 1; }\n",
    ),
    # The functions are inlined from the header: nothing to link.
    "xxhash": (
        "libxxhash",
        [],
        "#define XXH_INLINE_ALL\n#include <xxhash.h>\n"
        "int main(void) { return XXH3_128bits(0, 0).low64 ? 0 : 1; }\n",
    ),
}


def choice(name: str, default: str, known: tuple[str, ...]) -> str:
    value = os.environ.get(name) or default
    if value not in known:
        raise SetupError(f"{name}={value}: must be one of {', '.join(known)}")
    return value


MODE = choice("PREFIXHASH_BUILD", "auto", ("auto", "pure", "native"))


def wanted_features() -> list[str] | None:
    value = os.environ.get("PREFIXHASH_FEATURES")
    if not value:
        return None
    names = [] if value == "none" else value.split(",")
    for name in names:
        if name not in FEATURES:
            raise SetupError(f"PREFIXHASH_FEATURES={value}: {name!r} is none of {list(FEATURES)}")
    return names


def pkg_config(option: str, package: str) -> list[str]:
    command = [os.environ.get("PKG_CONFIG", "pkg-config"), option, package]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return []
    return shlex.split(done.stdout)


def remove_built(folder: Path) -> None:
    """A library of an earlier build would be used, or packed, in place of one that failed."""
    for pattern in ("*.so", "*.pyd"):
        for path in folder.rglob(pattern):
            path.unlink()


class BuildKernels(build_ext):
    """Looks for the libraries, then builds each extension, or leaves it out."""

    def run(self) -> None:
        self.force = True
        built = HOME if self.inplace else Path(self.build_lib) / HOME
        remove_built(built)
        for room in TWINS:
            (built / room).mkdir(parents=True, exist_ok=True)
        super().run()
        for room, modules in TWINS.items():
            libraries = [*(built / room).glob("*.so"), *(built / room).glob("*.pyd")]
            if len(libraries) != len(modules):  # they share C types: all or none
                remove_built(built / room)

    def build_extensions(self) -> None:
        if self.compiler.compiler_type == "unix" and "-O" not in os.environ.get("CFLAGS", ""):
            for extension in self.extensions:
                extension.extra_compile_args += ["-O3", "-g0"]
        wanted = wanted_features()
        for name in FEATURES:
            self.add_feature(name, wanted)
        super().build_extensions()

    def add_feature(self, name: str, wanted: list[str] | None) -> None:
        package, libraries, program = FEATURES[name]
        extension = self.extensions[0]
        macro = f"PREFIXHASH_{name.upper()}"
        compile_flags = pkg_config("--cflags", package)
        link_flags = pkg_config("--libs", package) if libraries else []
        link_flags = link_flags or [f"-l{library}" for library in libraries]
        if wanted is not None and name not in wanted:
            reason = "left out by PREFIXHASH_FEATURES"
        elif self.can_build(program, compile_flags, link_flags):
            extension.define_macros.append((macro, "1"))
            extension.extra_compile_args += compile_flags
            extension.extra_link_args += link_flags
            return
        else:
            reason = f"{package} headers not found at build time"
            if wanted is not None:
                raise SetupError(f"PREFIXHASH_FEATURES names {name}: {reason}")
        extension.define_macros.append((f"PREFIXHASH_NO_{name.upper()}", f'"{reason}"'))

    def can_build(self, program: str, compile_flags: list[str], link_flags: list[str]) -> bool:
        link_flags = [*link_flags, *shlex.split(os.environ.get("LDFLAGS", ""))]
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder, "probe.c")
            source.write_text(program, encoding="ascii")
            try:
                objects = self.compiler.compile(
                    [str(source)], output_dir=folder, extra_postargs=compile_flags
                )
                self.compiler.link_executable(
                    objects, str(Path(folder, "probe")), extra_postargs=link_flags
                )
            except (CCompilerError, ExecError, PlatformError):
                return False
        return True


class BuildPython(build_py):
    """Forgets the kernels of an earlier editable install when there are to be none."""

    def run(self) -> None:
        if self.editable_mode and MODE == "pure":
            remove_built(HOME)
        super().run()


def extensions() -> list[Extension]:
    if MODE == "pure":
        return []
    native = Extension(
        "prefixhash._compiled.native",
        [str(SOURCES / "native.c")],
        depends=[str(path) for path in sorted(SOURCES.glob("*.h"))],
        optional=MODE == "auto",
    )
    try:
        return [native, *twins()]
    except Exception as error:  # whatever Cython or its absence raises
        if MODE == "native":
            raise
        print(f"prefixhash: modules stay interpreted: {error}", file=sys.stderr)
        return [native]


def twins() -> list[Extension]:
    """The Python modules that are compiled as they stand, under their own names but in a folder
    apart, so that the run-time switch can choose."""
    from Cython.Build import cythonize

    compiled: list[Extension] = cythonize(
        [
            Extension(f"prefixhash.{room}.{module}", [f"prefixhash/{room}/{module}.py"])
            for room, modules in TWINS.items()
            for module in modules
        ],
        build_dir="build/cython",
        force=True,
        quiet=True,
        # Annotations stay hints, as they are to the interpreter: wrong arguments get our errors.
        compiler_directives={"annotation_typing": False, "language_level": 3},
    )
    for extension in compiled:
        extension.name = extension.name.replace("prefixhash.", "prefixhash._compiled.", 1)
        extension.optional = MODE == "auto"
    return compiled


setup(ext_modules=extensions(), cmdclass={"build_ext": BuildKernels, "build_py": BuildPython})
