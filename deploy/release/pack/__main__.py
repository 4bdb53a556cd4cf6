"""Makes the files of a release from its programs: deploy/release/release calls it.

Every file is a function of the commit, the programs and the tools; the time in all of them is that of the commit."""

import argparse
import hashlib
import os
import pathlib
import platform
import subprocess
import sys
import tempfile
import time as clock
import tomllib

sys.path.insert(0, os.path.dirname(__file__))

import archive
import debian
import image
import inventory
import krew
import provenance


class Release:
    names = {"portcullis": "portcullis", "portcullis-tools": "portcullis-login"}

    def __init__(self, options):
        self.root, self.out, self.work = map(pathlib.Path, (options.root, options.out, options.work))
        self.maintainer = options.maintainer
        self.commit, self.time = options.commit, options.time
        self.targets, self.features = options.targets.split(","), options.features
        self.cargo_profile, self.base_url, self.repository = options.profile, options.base_url, options.repository
        self.optimised = [target for target in options.optimised.split(",") if target]
        self.profile_data = pathlib.Path(options.profile_data) if options.profile_data else None
        self.zig, self.zig_version, self.go = pathlib.Path(options.zig), options.zig_version, options.go
        self.authorities = pathlib.Path(options.authorities).read_bytes()
        self.rust, self.rust_commit, self.runner = options.rust, options.rust_commit, options.runner
        self.architectures = [target.split("-")[0] for target in self.targets]
        package = tomllib.loads((self.root / "Cargo.toml").read_text())["package"]
        self.version, self.description = package["version"], package["description"]
        self.timestamp = clock.strftime("%Y-%m-%dT%H:%M:%SZ", clock.gmtime(self.time))
        header = (self.zig / "lib/libc/musl/src/internal/version.h").read_text()
        self.musl = header.split('"')[1]
        self.wheels = {}
        name = None
        for line in (self.root / "deploy/release/requirements.txt").read_text().splitlines():
            if "==" in line:
                name = line.split()[0].replace("==", "@")
            elif "--hash=sha256:" in line:
                # First that of x86_64, then that of aarch64.
                if name not in self.wheels or platform.machine() == "aarch64":
                    self.wheels[name] = line.split("sha256:")[1].split()[0]
        self.made = []

    def program(self, name, architecture):
        return self.work / f"{name}-{architecture}"

    def write(self, name, content, mode=0o644):
        path = self.out / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        path.chmod(mode)
        self.made.append(name)

    def run(self, program, *arguments):
        command = [*self.runner.split(), self.program(program, self.architectures[0]), *arguments]
        return subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout

    def pages(self, program):
        """The manual pages of a program and its commands."""
        with tempfile.TemporaryDirectory() as directory:
            self.run(program, "man", "--out", directory)
            return [(page.name, page.read_bytes()) for page in sorted(pathlib.Path(directory).iterdir())]

    def completion(self, program, shell):
        return self.run(program, "completion", shell)

    def unit(self):
        unit = (self.root / "deploy/portcullis.service").read_text().replace("/usr/local/bin/portcullis", "/usr/bin/portcullis")
        unit = unit.replace("250 or later: docs/deployment.md installs it.", "250 or later.")
        return unit.replace("\nAfter=", "\nDocumentation=man:portcullis(1) man:portcullis-serve(1)\nAfter=", 1)

    def copyright(self):
        return (
            "Portcullis is licensed under the Apache License, Version 2.0: /usr/share/common-licenses/Apache-2.0.\n"
            "THIRD-PARTY-LICENSES.txt.gz lists the works of others in its program.\n"
        )


def options():
    parser = argparse.ArgumentParser()
    for name in ("root", "out", "work", "commit", "targets", "features", "profile", "base-url", "repository", "optimised",
            "profile-data", "zig", "zig-version", "go", "authorities", "rust", "rust-commit", "runner", "chart", "maintainer"):
        parser.add_argument(f"--{name}", default="")
    parser.add_argument("--time", type=int)
    return parser.parse_args()


def main():
    given = options()
    release = Release(given)
    crates = inventory.Crates(release)
    release.licenses = inventory.licenses(release, crates)
    for package, name in release.names.items():
        release.write(f"{name}-{release.version}.cdx.json", inventory.bill(release, crates, package))
    release.write("THIRD-PARTY-LICENSES.txt", release.licenses)

    # The programs, and the kubectl plugin.
    for architecture in release.architectures:
        for name in release.names.values():
            release.write(f"{name}-{release.version}-{architecture}-linux", release.program(name, architecture).read_bytes(), 0o755)
        plugin = archive.Tree()
        plugin.add("portcullis-login", release.program("portcullis-login", architecture), 0o755)
        plugin.add("LICENSE", release.root / "LICENSE")
        plugin.add("THIRD-PARTY-LICENSES.txt", release.licenses)
        release.write(krew.archive_name(release, architecture), archive.compressed(plugin.tar(release.time, directories=False)))

    # What programs without a package need beside them.
    extras = archive.Tree()
    for program in release.names.values():
        for name, content in release.pages(program):
            # The page of `portcullis login` has the name of the other program.
            extras.add(f"{program}/man/man1/{name}", content)
        for shell in ("bash", "zsh", "fish"):
            extras.add(f"{program}/completions/{program}.{shell}", release.completion(program, shell))
    for path in sorted((release.root / "config").rglob("*.yaml")):
        extras.add(f"config/{path.relative_to(release.root / 'config')}", path)
    extras.add("portcullis.service", release.root / "deploy/portcullis.service")
    for path in sorted((release.root / "deploy").glob("rbac*.yaml")):
        extras.add(path.name, path)
    release.write(f"portcullis-{release.version}-extras.tar.gz", archive.compressed(extras.tar(release.time, directories=False)))

    debian.write(release)
    digest = image.write(release)
    release.write(f"portcullis-chart-{release.version}.tgz", archive.normalized(given.chart, release.time))
    if release.profile_data:
        release.write(release.profile_data.name, release.profile_data.read_bytes())

    sums = {}
    for name in release.made:
        sums[name] = hashlib.sha256((release.out / name).read_bytes()).hexdigest()
    krew.write(release, sums)
    sums["portcullis.yaml"] = hashlib.sha256((release.out / "portcullis.yaml").read_bytes()).hexdigest()
    provenance.write(release, sums)
    for name in release.made:
        sums[name] = hashlib.sha256((release.out / name).read_bytes()).hexdigest()
    release.write("SHA256SUMS", "".join(f"{sums[name]}  {name}\n" for name in sorted(sums)))
    for name in sorted(release.made):
        print(f"{(release.out / name).stat().st_size:>11}  {name}")
    print(f"image: {digest}")


main()
