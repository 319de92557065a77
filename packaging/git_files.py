"""Puts git, ssh and what both need into the root of an image: git_files.py ARCH ROOT CACHE

They are the programs of Debian, for an architecture that need not be that of the machine; CACHE keeps what apt has
downloaded. Only the programs that the gateway runs are taken, with the libraries that they name: a shell, cat, git with
its helper for https, ssh, ssh-keygen, and the certificates of public authorities. A dynamic gateway in ROOT gets its
libraries, too.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

DEBIAN = {"x86_64": "amd64", "aarch64": "arm64"}
PACKAGES = ["git", "openssh-client", "ca-certificates", "dash", "coreutils", "libgcc-s1"]
PROGRAMS = ["usr/bin/git", "usr/lib/git-core/git", "usr/lib/git-core/git-remote-http", "usr/lib/git-core/git-remote-https",
            "usr/bin/ssh", "usr/bin/ssh-keygen", "bin/dash", "bin/cat"]
GATEWAY = "usr/local/bin/promptgate"
FILES = {
    # ssh asks for the name and the home of its user; its keys are in the home, below .ssh.
    "etc/passwd": "root:x:0:0::/:/bin/sh\npromptgate:x:10001:10001::/var/lib/promptgate:/bin/sh\n",
    "etc/group": "root:x:0:\npromptgate:x:10001:\n",
    "etc/nsswitch.conf": "hosts: files dns\n",
}


def run(*command):
    return subprocess.run([str(word) for word in command], check=True, text=True, capture_output=True).stdout


def unpacked(arch, cache):
    """The folder with the files of all packages, downloaded on the first call."""
    tree = cache / "tree"
    if tree.exists():
        return tree
    apt = cache / "apt"
    shutil.rmtree(apt, ignore_errors=True)
    for folder in ("state/lists/partial", "cache/archives/partial"):
        (apt / folder).mkdir(parents=True)
    (apt / "status").touch()
    options = {"APT::Architecture": arch, "APT::Architectures": arch, "Dir::State": apt / "state",
               "Dir::State::status": apt / "status", "Dir::Cache": apt / "cache", "APT::Sandbox::User": "root"}
    apt_get = ["apt-get", "-qy", *(word for key, value in options.items() for word in ("-o", f"{key}={value}"))]
    run(*apt_get, "update")
    run(*apt_get, "install", "--download-only", "--no-install-recommends", *PACKAGES)
    partial = cache / "partial"
    for package in sorted((apt / "cache/archives").glob("*.deb")):
        run("dpkg-deb", "--extract", package, partial)
    partial.rename(tree)
    return tree


def needed(file, found, tree):
    """The files that a program names, each with its place: its libraries, and its loader."""
    told = run("readelf", "--dynamic", "--program-headers", file)
    libraries = [found[name] for name in re.findall(r"\(NEEDED\).*\[(.+)\]", told)]
    loaders = re.findall(r"interpreter: /(\S+)\]", told)
    return [(file, str(file.relative_to(tree))) for file in libraries] + \
        [(found[Path(loader).name], loader) for loader in loaders]


def main(arch, root, cache):
    root, tree = Path(root), unpacked(DEBIAN[arch], Path(cache).resolve() / arch)
    found = {file.name: file for file in sorted(tree.glob("**/*.so*"), reverse=True)}
    waiting = [(tree / name, name) for name in PROGRAMS] + needed(root / GATEWAY, found, tree)
    while waiting:
        source, name = waiting.pop()
        target = root / name
        if target.exists():
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        # A link to a library becomes the library: its name is what programs ask for.
        shutil.copy(source.resolve(), target)
        waiting += needed(target, found, tree)
    (root / "bin/dash").rename(root / "bin/sh")
    for name, text in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    authorities = sorted((tree / "usr/share/ca-certificates/mozilla").glob("*.crt"))
    bundle = root / "etc/ssl/certs/ca-certificates.crt"
    bundle.parent.mkdir(parents=True, exist_ok=True)
    bundle.write_text("".join(file.read_text() for file in authorities))


main(*sys.argv[1:])
