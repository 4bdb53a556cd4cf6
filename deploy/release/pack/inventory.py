"""What the programs are made of: a bill of materials (CycloneDX) for each program, and the licences of everything in them.

Cargo says which crates: those that the programs are linked from, and those that take part in the build. C comes along in crates
(aws-lc, mimalloc) and with zig (musl, compiler-rt); the standard library with Rust."""

import collections
import hashlib
import json
import os
import subprocess
import uuid

TEXTS = ("LICEN", "COPYING", "NOTICE", "COPYRIGHT", "UNLICENSE")

MIT = """Permission is hereby granted, free of charge, to any person obtaining a copy of this software and associated documentation
files (the "Software"), to deal in the Software without restriction, including without limitation the rights to use, copy, modify,
merge, publish, distribute, sublicense, and/or sell copies of the Software, and to permit persons to whom the Software is furnished
to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all copies or substantial portions of the Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF
MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR COPYRIGHT HOLDERS BE LIABLE
FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION
WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
"""


class Crates:
    """The crates of the workspace's lock file."""

    def __init__(self, release):
        self.release = release
        metadata = json.loads(self.cargo("metadata", "--format-version", "1"))
        self.packages = {(package["name"], package["version"]): package for package in metadata["packages"]}
        self.checksums = {}
        entry = {}
        for line in (release.root / "Cargo.lock").read_text().splitlines():
            key, _, value = line.partition(" = ")
            if line == "[[package]]":
                entry = {}
            elif key in ("name", "version", "checksum"):
                entry[key] = value.strip('"')
                if key == "checksum":
                    self.checksums[(entry["name"], entry["version"])] = entry["checksum"]

    def cargo(self, *arguments):
        command = ["cargo", arguments[0], "--locked", *arguments[1:]]
        return subprocess.run(command, cwd=self.release.root, check=True, stdout=subprocess.PIPE, text=True).stdout

    def graph(self, package, edges):
        """Which crate depends on which, with the features and the targets of the release."""
        arguments = ["tree", "--package", package, "--no-default-features", "--edges", edges, "--prefix", "depth"]
        arguments += ["--format", " {p}"]
        if package == "portcullis":
            arguments += ["--features", self.release.features]
        for target in self.release.targets:
            arguments += ["--target", target]
        graph = collections.defaultdict(set)
        above = []
        for line in self.cargo(*arguments).splitlines():
            if not line.strip():
                continue
            depth, name, version = line.split()[:3]
            crate = (name, version.removeprefix("v"))
            del above[int(depth):]
            if above:
                graph[above[-1]].add(crate)
            graph[crate]
            above.append(crate)
        return graph


def reference(crate):
    return f"pkg:cargo/{crate[0]}@{crate[1]}"


def expression(package):
    # `MIT/Apache-2.0` is how crates wrote it once.
    return " OR ".join(part.strip() for part in (package["license"] or "").split("/")) if package["license"] else None


RUST = """The standard library of Rust, under MIT or Apache-2.0, with LLVM's libunwind, under Apache-2.0 WITH LLVM-exception. The
copyright of its parts is in COPYRIGHT-library.html of the toolchain (share/doc/rust).
"""


def others(release):
    """What Cargo does not know: name, version, licence, and its text."""
    yield "musl", release.musl, "MIT", (release.zig / "lib/libc/musl/COPYRIGHT").read_text()
    yield "rust-std", release.rust, "MIT OR Apache-2.0", RUST
    yield "zig-compiler-rt", release.zig_version, "MIT", (release.zig / "LICENSE").read_text()


def bill(release, crates, package):
    """The bill of materials of a program."""
    linked = crates.graph(package, "normal,no-proc-macro")
    every = crates.graph(package, "normal,build")
    own = crates.packages[(package, release.version)]
    components = []
    for crate in sorted(every):
        if crate[0] == package:
            continue
        known = crates.packages[crate]
        component = {
            "type": "library",
            "bom-ref": reference(crate),
            "name": crate[0],
            "version": crate[1],
            # What takes part in the build alone is not in the program.
            "scope": "required" if crate in linked else "excluded",
            "purl": reference(crate),
        }
        if known["description"]:
            component["description"] = " ".join(known["description"].split())
        if crate in crates.checksums:
            component["hashes"] = [{"alg": "SHA-256", "content": crates.checksums[crate]}]
        if expression(known):
            component["licenses"] = [{"expression": expression(known)}]
        if known["repository"]:
            component["externalReferences"] = [{"type": "vcs", "url": known["repository"]}]
        components.append(component)
    for name, version, licence, _ in others(release):
        components.append({"type": "library", "bom-ref": f"pkg:generic/{name}@{version}", "name": name, "version": version,
            "scope": "required", "purl": f"pkg:generic/{name}@{version}", "licenses": [{"expression": licence}]})
    root = reference((package, release.version))
    dependencies = [{"ref": root if crate[0] == package else reference(crate),
        "dependsOn": sorted(reference(below) for below in every[crate])} for crate in sorted(every)]
    document = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "timestamp": release.timestamp,
            "tools": {"components": [{"type": "application", "name": "deploy/release/release", "version": release.version}]},
            "component": {"type": "application", "bom-ref": root, "name": release.names[package], "version": release.version,
                "description": own["description"], "licenses": [{"expression": own["license"]}], "purl": root},
        },
        "components": components,
        "dependencies": dependencies,
    }
    content = json.dumps(document, sort_keys=True).encode()
    # The same content has the same number.
    document["serialNumber"] = "urn:uuid:" + str(uuid.UUID(bytes=hashlib.sha256(content).digest()[:16], version=4))
    return json.dumps(document, indent=1, sort_keys=True) + "\n"


def texts(release, package):
    """The texts of licences and notices that a crate comes with, also those of C inside it."""
    root = os.path.dirname(package["manifest_path"])
    found = []
    for directory, below, files in os.walk(root):
        below[:] = sorted(name for name in below if name not in ("target", "tests", "test", "benches", "third_party"))
        found += [os.path.join(directory, name) for name in sorted(files) if name.upper().startswith(TEXTS)]
    found = [file for file in found if not file.endswith((".rs", ".py", ".hbs", ".toml"))]
    if found:
        for file in found:
            with open(file, encoding="utf-8", errors="replace") as text:
                yield text.read()
    elif "Apache-2.0" in package["license"]:
        yield (release.root / "LICENSE").read_text()
    else:
        yield f"Copyright (c) {', '.join(package['authors'] or [package['name'] + ' contributors'])}\n\n{MIT}"


def licenses(release, crates):
    """The licences of everything that the programs are linked from: a table, and each text once."""
    linked = set()
    for package in release.names:
        linked |= set(crates.graph(package, "normal,no-proc-macro"))
    rows, users = [], collections.defaultdict(list)
    for crate in sorted(linked):
        package = crates.packages[crate]
        if not package["source"]:
            continue
        rows.append((f"{crate[0]} {crate[1]}", expression(package)))
        for text in texts(release, package):
            users["\n".join(line.rstrip() for line in text.strip().splitlines())].append(rows[-1][0])
    for name, version, licence, text in others(release):
        rows.append((f"{name} {version}", licence))
        users["\n".join(line.rstrip() for line in text.strip().splitlines())].append(rows[-1][0])
    lines = [
        f"Portcullis {release.version} is licensed under Apache-2.0 (LICENSE). Its programs contain these works of others.",
        "",
        "The page of the clusters has no JavaScript; its templates, style sheet and icon belong to Portcullis.",
        "The image has Mozilla's list of certificate authorities, too (certifi, MPL-2.0).",
        "",
    ]
    width = max(len(name) for name, _ in rows)
    lines += [f"{name:{width}}  {licence}" for name, licence in rows]
    for text, names in sorted(users.items(), key=lambda item: item[1]):
        lines += ["", "=" * 100, ", ".join(dict.fromkeys(names)), "-" * 100, text]
    return "\n".join(lines) + "\n"
