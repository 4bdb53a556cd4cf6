"""The image: an OCI archive with an index of one image for each architecture, made of nothing but files of this release."""

import hashlib
import json
import time as clock

from archive import Tree, compressed

USER = 65532
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def layer(release, architecture):
    """The root file system. Nothing in it is written at run time."""
    tree = Tree()
    tree.add("usr/local/bin/portcullis", release.program("portcullis", architecture), 0o755)
    tree.add("etc/ssl/certs/ca-certificates.crt", release.authorities)
    tree.add("etc/passwd", f"root:x:0:0:root:/:/sbin/nologin\nportcullis:x:{USER}:{USER}:portcullis:/:/sbin/nologin\n")
    tree.add("etc/group", f"root:x:0:\nportcullis:x:{USER}:\n")
    tree.add("usr/share/doc/portcullis/LICENSE", release.root / "LICENSE")
    tree.add("usr/share/doc/portcullis/THIRD-PARTY-LICENSES.txt", release.licenses)
    # Configuration is mounted here.
    tree.directory("etc/portcullis")
    tree.directory("tmp", 0o1777)
    return tree.tar(release.time)


def write(release):
    archive = Tree()

    def blob(content, media_type):
        digest = hashlib.sha256(content).hexdigest()
        archive.add(f"blobs/sha256/{digest}", content)
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(content)}

    def document(value, media_type):
        return blob(json.dumps(value, sort_keys=True, separators=(",", ":")).encode(), media_type)

    created = clock.strftime("%Y-%m-%dT%H:%M:%SZ", clock.gmtime(release.time))
    labels = {
        "org.opencontainers.image.title": "portcullis",
        "org.opencontainers.image.description": release.description,
        "org.opencontainers.image.version": release.version,
        "org.opencontainers.image.revision": release.commit,
        "org.opencontainers.image.licenses": "Apache-2.0",
        "org.opencontainers.image.created": created,
    }
    manifests = []
    for architecture in release.architectures:
        content = layer(release, architecture)
        configuration = {
            "created": created,
            "architecture": ARCHITECTURES[architecture],
            "os": "linux",
            "config": {
                "User": f"{USER}:{USER}",
                "ExposedPorts": {"6443/tcp": {}, "9094/tcp": {}},
                "Env": ["SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt"],
                "Entrypoint": ["/usr/local/bin/portcullis"],
                "Cmd": ["serve", "--config=/etc/portcullis/config/gateway.yaml"],
                "WorkingDir": "/",
                "Labels": labels,
            },
            "rootfs": {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(content).hexdigest()]},
            "history": [{"created": created, "created_by": "deploy/release/release"}],
        }
        manifest = {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": document(configuration, "application/vnd.oci.image.config.v1+json"),
            "layers": [blob(compressed(content), "application/vnd.oci.image.layer.v1.tar+gzip")],
            "annotations": labels,
        }
        described = document(manifest, manifest["mediaType"])
        manifests.append(described | {"platform": {"architecture": ARCHITECTURES[architecture], "os": "linux"}})
    index = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": manifests,
        "annotations": labels,
    }
    if len(manifests) == 1:
        named = manifests[0]
    else:
        named = document(index, index["mediaType"])
    named = named | {"annotations": {"org.opencontainers.image.ref.name": release.version}}
    archive.add("oci-layout", '{"imageLayoutVersion":"1.0.0"}')
    archive.add("index.json", json.dumps({"schemaVersion": 2, "mediaType": index["mediaType"], "manifests": [named]}))
    release.write(f"portcullis-{release.version}-image.tar", archive.tar(release.time))
    return named["digest"]
