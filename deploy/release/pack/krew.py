"""The manifest of the kubectl plugin for an index of krew: `kubectl portcullis login`."""

import json

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
NAME = "portcullis"


def archive_name(release, architecture):
    return f"portcullis-login-{release.version}-{architecture}-linux.tar.gz"


def write(release, digests):
    platforms = [
        {
            "selector": {"matchLabels": {"os": "linux", "arch": ARCHITECTURES[architecture]}},
            "uri": f"{release.base_url}/{archive_name(release, architecture)}",
            "sha256": digests[archive_name(release, architecture)],
            "files": [{"from": "portcullis-login", "to": "."}, {"from": "LICENSE", "to": "."},
                {"from": "THIRD-PARTY-LICENSES.txt", "to": "."}],
            "bin": "portcullis-login",
        }
        for architecture in release.architectures
    ]
    manifest = {
        "apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
        "kind": "Plugin",
        "metadata": {"name": NAME},
        "spec": {
            "version": f"v{release.version}",
            "shortDescription": "Log in to clusters with OpenID providers",
            "description": "Logs in to a cluster with an OpenID provider, writes a kubeconfig for it, and is its\n"
                "credential plugin: kubectl portcullis login --help.\n",
            "homepage": release.base_url,
            "platforms": platforms,
        },
    }
    # JSON is YAML.
    release.write(f"{NAME}.yaml", json.dumps(manifest, indent=2) + "\n")
