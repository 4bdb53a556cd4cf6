"""Where a release comes from: an in-toto statement with a SLSA provenance predicate. It is not signed (docs/install.md).

It has no times and no host names: two builds of the same sources have the same one."""

import hashlib
import json


def digest_of(path):
    with open(path, "rb") as file:
        return {"sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def write(release, digests):
    materials = [{"name": "sources", "digest": {"gitCommit": release.commit}}]
    if release.repository:
        materials[0]["uri"] = f"git+{release.repository}"
    for path in ("Cargo.lock", "rust-toolchain.toml", "deploy/release/requirements.txt", "tests/deploy/helm/go.sum"):
        materials.append({"name": path, "digest": digest_of(release.root / path)})
    for name in sorted(release.wheels):
        materials.append({"uri": f"pkg:pypi/{name}", "name": name, "digest": {"sha256": release.wheels[name]}})
    materials.append({"uri": f"pkg:generic/rust@{release.rust}", "name": "rust", "digest": {"gitCommit": release.rust_commit}})
    materials.append({"uri": f"pkg:golang/go@{release.go.removeprefix('go')}", "name": "go"})
    if release.profile_data:
        # The optimised program depends on it; with it the same bytes come again.
        materials.append({"name": release.profile_data.name, "digest": digest_of(release.profile_data)})
    statement = {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": name, "digest": {"sha256": digests[name]}} for name in sorted(digests)],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": "https://portcullis.dev/release/v1",
                "externalParameters": {
                    "targets": release.targets,
                    "features": release.features.split(","),
                    "cargoProfile": release.cargo_profile,
                    "optimisedByProfile": sorted(release.optimised),
                    "baseUrl": release.base_url,
                },
                "internalParameters": {"sourceDateEpoch": release.time},
                "resolvedDependencies": materials,
            },
            "runDetails": {
                "builder": {"id": "https://portcullis.dev/release/local", "version": {"portcullis": release.version}},
            },
        },
    }
    release.write(f"portcullis-{release.version}.intoto.json", json.dumps(statement, indent=1, sort_keys=True) + "\n")
