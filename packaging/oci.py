"""Writes an OCI image layout (image-spec 1.1) as an archive: a manifest for each architecture, and one index.

usage: oci.py FOLDER OUTPUT ARCH…       FOLDER/ARCH is the root of the image
Of the environment: version, homepage, SOURCE_DATE_EPOCH. The same files make the same bytes.
"""

import gzip
import hashlib
import io
import json
import os
import sys
import tarfile
from datetime import datetime, timezone
from pathlib import Path

EPOCH = int(os.environ["SOURCE_DATE_EPOCH"])
VERSION = os.environ["version"]
USER = 10001
# The gateway writes there: the key of the audit log beside the configuration, if no other is set.
OWNED = ("etc/promptgate", "var/lib/promptgate")
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
CREATED = datetime.fromtimestamp(EPOCH, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
ANNOTATIONS = {
    "org.opencontainers.image.title": "promptgate",
    "org.opencontainers.image.description": "One endpoint in front of every MCP prompt server a company has",
    "org.opencontainers.image.version": VERSION,
    "org.opencontainers.image.created": CREATED,
    "org.opencontainers.image.licenses": "Apache-2.0",
    "org.opencontainers.image.source": os.environ["homepage"],
}
CONFIG = {
    "User": str(USER),
    "WorkingDir": "/etc/promptgate",
    "Entrypoint": ["/usr/local/bin/promptgate"],
    "ExposedPorts": {"8080/tcp": {}},
    "Volumes": {"/var/lib/promptgate": {}},
    "Labels": ANNOTATIONS,
    "StopSignal": "SIGTERM",
    # In a container loopback is nobody's, so it listens at all addresses, and does not start before gateway.toml has a
    # way to authenticate callers.
    "Env": [
        # The programs of git are in the others.
        "PATH=/usr/local/bin:/usr/bin:/bin",
        "PROMPTGATE__SERVER__LISTEN=0.0.0.0:8080",
        "PROMPTGATE__AUDIT__PATH=/var/lib/promptgate/audit",
        "PROMPTGATE__ADMIN__USAGE__PATH=/var/lib/promptgate/usage",
        "PROMPTGATE__LOGINS__PATH=/var/lib/promptgate/logins",
    ],
    # An extension of Docker; times in nanoseconds.
    "Healthcheck": {
        "Test": ["CMD", "/usr/local/bin/promptgate", "health", "--live"],
        "Interval": 30 * 10**9,
        "Timeout": 5 * 10**9,
        "StartPeriod": 10 * 10**9,
    },
}
OCI = "application/vnd.oci.image."


def archive(root, entry):
    """A tar of a folder, whose bytes depend on its files alone. `entry` adjusts the header of each."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for path in sorted(root.rglob("*")):
            info = tar.gettarinfo(path, path.relative_to(root).as_posix())
            info.mtime, info.uid, info.gid, info.uname, info.gname = EPOCH, 0, 0, "", ""
            entry(info)
            tar.addfile(info, path.open("rb") if info.isfile() else None)
    return out.getvalue()


def layer_entry(info):
    info.mode = 0o755 if info.isdir() or info.mode & 0o100 else 0o644
    if info.name == "tmp":
        info.mode = 0o1777
    if info.name in OWNED:
        info.uid = info.gid = USER


class Layout:
    """The folder of an image: blobs by their digests."""

    def __init__(self, folder):
        self.folder = folder
        (folder / "blobs/sha256").mkdir(parents=True)

    def add(self, media_type, data, **more):
        """Stores a blob and returns its descriptor."""
        data = data if isinstance(data, bytes) else json.dumps(data, sort_keys=True).encode()
        digest = hashlib.sha256(data).hexdigest()
        (self.folder / "blobs/sha256" / digest).write_bytes(data)
        return {"mediaType": OCI + media_type, "digest": f"sha256:{digest}", "size": len(data), **more}

    def add_image(self, root, architecture):
        layer = archive(root, layer_entry)
        platform = {"architecture": architecture, "os": "linux"}
        config = self.add("config.v1+json", {
            **platform,
            "created": CREATED,
            "config": CONFIG,
            "rootfs": {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(layer).hexdigest()]},
            "history": [{"created": CREATED, "created_by": "packaging/image"}],
        })
        packed = self.add("layer.v1.tar+gzip", gzip.compress(layer, 9, mtime=0))
        manifest = {"schemaVersion": 2, "mediaType": OCI + "manifest.v1+json", "config": config,
                    "layers": [packed], "annotations": ANNOTATIONS}
        return self.add("manifest.v1+json", manifest, platform=platform)

    def close(self, images):
        index = {"schemaVersion": 2, "mediaType": OCI + "index.v1+json", "manifests": images,
                 "annotations": ANNOTATIONS}
        name = {"annotations": {"org.opencontainers.image.ref.name": VERSION}}
        top = {"schemaVersion": 2, "manifests": [self.add("index.v1+json", index, **name)]}
        (self.folder / "index.json").write_text(json.dumps(top))
        (self.folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')


def main(folder, output, *architectures):
    folder = Path(folder)
    layout = Layout(folder / "layout")
    layout.close([layout.add_image(folder / arch, ARCHITECTURES[arch]) for arch in architectures])

    def plain(info):
        info.mode = 0o755 if info.isdir() else 0o644

    Path(output).write_bytes(archive(folder / "layout", plain))


main(*sys.argv[1:])
