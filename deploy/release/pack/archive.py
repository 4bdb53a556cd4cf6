"""Archives whose bytes depend on their content alone: sorted names, one time, no owner, no clock in the header of gzip."""

import gzip
import io
import os
import tarfile


class Tree:
    """Files by their paths. A directory that is not given has mode 0755 and belongs to root."""

    def __init__(self):
        self.entries = {}

    def add(self, path, content, mode=0o644):
        """A file with this content, or that of a file if it is a path."""
        if isinstance(content, os.PathLike):
            with open(content, "rb") as file:
                content = file.read()
        elif isinstance(content, str):
            content = content.encode()
        self.entries[path] = ("file", content, mode, 0)

    def directory(self, path, mode=0o755, owner=0):
        self.entries[path] = ("directory", b"", mode, owner)

    def link(self, path, target):
        """A symbolic link."""
        self.entries[path] = ("link", target.encode(), 0o777, 0)

    def all(self):
        """Every entry in order, with the directories above it."""
        every = dict(self.entries)
        for path in self.entries:
            above = os.path.dirname(path)
            while above:
                every.setdefault(above, ("directory", b"", 0o755, 0))
                above = os.path.dirname(above)
        return sorted(every.items())

    def tar(self, time, directories=True):
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
            for path, (kind, content, mode, owner) in self.all():
                if kind == "directory" and not directories:
                    continue
                entry = tarfile.TarInfo(path)
                entry.mtime, entry.mode, entry.uid, entry.gid = time, mode, owner, owner
                if kind == "link":
                    entry.type, entry.linkname, content = tarfile.SYMTYPE, content.decode(), b""
                else:
                    entry.type = tarfile.DIRTYPE if kind == "directory" else tarfile.REGTYPE
                entry.size = len(content)
                tar.addfile(entry, io.BytesIO(content))
        return buffer.getvalue()

    def write(self, root, time):
        """The tree as files below a directory."""
        for path, (kind, content, mode, _) in self.all():
            target = os.path.join(root, path)
            if kind == "link":
                os.symlink(content, target)
                continue
            if kind == "directory":
                os.makedirs(target, exist_ok=True)
            else:
                with open(target, "wb") as file:
                    file.write(content)
            os.chmod(target, mode)
        for path, _ in reversed(self.all()):
            os.utime(os.path.join(root, path), (time, time), follow_symlinks=False)
        os.utime(root, (time, time))


def compressed(content):
    # Debian wants papers at the highest level; of programs it makes a hundredth, and takes thrice as long.
    level = 9 if len(content) < 4 << 20 else 6
    return gzip.compress(content, compresslevel=level, mtime=0)


def normalized(path, time):
    """A compressed archive of another program, with the same files in order and one time."""
    tree = Tree()
    with tarfile.open(path, "r:gz") as tar:
        for entry in tar.getmembers():
            if entry.isfile():
                tree.add(entry.name, tar.extractfile(entry).read(), entry.mode & 0o777)
    return compressed(tree.tar(time, directories=False))
