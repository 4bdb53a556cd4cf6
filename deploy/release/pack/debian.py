"""Debian packages: the gateway with its unit, and the commands of people's machines by themselves.

dpkg-deb makes them, not cargo-deb: the programs come from another build than cargo's own, pages and completions from the programs,
and dpkg-deb is on every machine that builds for Debian. With SOURCE_DATE_EPOCH, one owner and one compression its bytes are the same."""

import hashlib
import os
import subprocess
import tempfile
import time as clock

from archive import Tree, compressed

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}

CONTROL = """Package: {package}
Version: {version}
Architecture: {architecture}
Maintainer: {maintainer}
Installed-Size: {size}
{relations}Section: {section}
Priority: optional
Description: {summary}
{text}
"""

GATEWAY = (
    "portcullis", "net", "Depends: passwd\nRecommends: ca-certificates\n",
    "authenticating front proxy for Kubernetes API servers",
    """ Portcullis authenticates each client by kube-apiserver's own flags and rules, removes
 the client's credentials, and forwards the request over mutual TLS with the user in
 headers. The service starts when /etc/portcullis/gateway.yaml is written and
 portcullis.service is enabled.""",
)
LOGIN = (
    "portcullis-login", "net", "Conflicts: portcullis\nRecommends: ca-certificates\nSuggests: xdg-utils\n",
    "log in to Kubernetes clusters with an OpenID provider",
    """ The commands login, logout and credential of Portcullis, without the gateway, whose
 package has them, too. kubectl runs credential as an exec plugin.""",
)


def version(release):
    """A pre-release is older than its release."""
    return release.version.replace("-", "~", 1)


def common(release, tree, package):
    """What every package has: pages, completions, and its own papers."""
    for name, content in release.pages(package):
        tree.add(f"usr/share/man/man1/{name}.gz", compressed(content))
    completions = {
        "bash": f"usr/share/bash-completion/completions/{package}",
        "zsh": f"usr/share/zsh/vendor-completions/_{package}",
        "fish": f"usr/share/fish/vendor_completions.d/{package}.fish",
    }
    for shell, path in completions.items():
        tree.add(path, release.completion(package, shell))
    papers = f"usr/share/doc/{package}"
    tree.add(f"{papers}/copyright", release.copyright())
    tree.add(f"{papers}/THIRD-PARTY-LICENSES.txt.gz", compressed(release.licenses.encode()))
    date = clock.strftime("%a, %d %b %Y %H:%M:%S +0000", clock.gmtime(release.time))
    changes = f"{package} ({version(release)}) stable; urgency=medium\n\n  * See NEWS.md.gz.\n\n -- {release.maintainer}  {date}\n"
    tree.add(f"{papers}/changelog.gz", compressed(changes.encode()))
    tree.add(f"{papers}/NEWS.md.gz", compressed((release.root / "CHANGELOG.md").read_bytes()))


def gateway(release, architecture):
    tree = Tree()
    tree.add("usr/bin/portcullis", release.program("portcullis", architecture), 0o755)
    common(release, tree, "portcullis")
    tree.add("usr/lib/systemd/system/portcullis.service", release.unit())
    for path in sorted((release.root / "config").rglob("*.yaml")):
        tree.add(f"usr/share/doc/portcullis/examples/{path.relative_to(release.root / 'config')}", path)
    # Its owner and mode come from postinst: the group has no fixed number.
    tree.directory("etc/portcullis", 0o750)
    return tree


def login(release, architecture):
    tree = Tree()
    tree.add("usr/bin/portcullis-login", release.program("portcullis-login", architecture), 0o755)
    # Kubeconfigs of others, and messages, name the command so.
    tree.link("usr/bin/portcullis", "portcullis-login")
    common(release, tree, "portcullis-login")
    return tree


def write(release):
    # xz takes a minute for each program that is not optimised.
    compression = ["-Zxz", "-z6"] if release.cargo_profile == "release" else ["-Zgzip", "-z1"]
    for (package, section, relations, summary, text), content in ((GATEWAY, gateway), (LOGIN, login)):
        for architecture in release.architectures:
            tree = content(release, architecture)
            files = [(path, bytes_) for path, (kind, bytes_, _, _) in tree.all() if kind == "file"]
            control = CONTROL.format(
                package=package, version=version(release), architecture=ARCHITECTURES[architecture],
                maintainer=release.maintainer, size=sum(-(-len(bytes_) // 1024) for _, bytes_ in files),
                relations=relations, section=section, summary=summary, text=text,
            )
            tree.add("DEBIAN/control", control)
            sums = "".join(f"{hashlib.md5(bytes_).hexdigest()}  {path}\n" for path, bytes_ in files)
            tree.add("DEBIAN/md5sums", sums)
            scripts = release.root / "deploy/release/debian" / package
            for script in sorted(scripts.iterdir()) if scripts.is_dir() else ():
                tree.add(f"DEBIAN/{script.name}", script, 0o755)
            with tempfile.TemporaryDirectory() as root:
                tree.write(root, release.time)
                os.chmod(root, 0o755)
                name = f"{package}_{version(release)}_{ARCHITECTURES[architecture]}.deb"
                # One thread: how xz divides its input depends on their number (DPKG_DEB_THREADS_MAX).
                subprocess.run(["dpkg-deb", "--build", "--root-owner-group", *compression, root, release.out / name],
                    check=True, stdout=subprocess.DEVNULL, env=os.environ | {"SOURCE_DATE_EPOCH": str(release.time), "DPKG_DEB_THREADS_MAX": "1"})
                release.made.append(name)
