"""Writes dist/homebrew/promptgate.rb and dist/winget/*.yaml from dist/SHA256SUMS. See `manifests`."""

import os
import sys
from pathlib import Path

VERSION, HOMEPAGE = os.environ["version"], os.environ["homepage"]
SUMMARY = "One endpoint in front of every MCP prompt server a company has"
# The blocks of a formula, and the target whose archive each takes.
PLATFORMS = {
    "on_macos": {"on_arm": "aarch64-apple-darwin", "on_intel": "x86_64-apple-darwin"},
    "on_linux": {"on_arm": "aarch64-unknown-linux-musl", "on_intel": "x86_64-unknown-linux-musl"},
}


def archives(sums):
    """URL and digest of each archive, by its target."""
    found = {}
    for line in sums.read_text().splitlines():
        digest, file = line.split()
        name = file.removeprefix("*")
        for suffix in (".tar.gz", ".zip"):
            if name.startswith(f"promptgate-{VERSION}-") and name.endswith(suffix):
                target = name.removeprefix(f"promptgate-{VERSION}-").removesuffix(suffix)
                found[target] = (f"{HOMEPAGE}/releases/download/v{VERSION}/{name}", digest)
    return found


def formula(found):
    """A Homebrew formula, https://docs.brew.sh/Formula-Cookbook."""
    lines = []
    for system, processors in PLATFORMS.items():
        blocks = []
        for processor, target in processors.items():
            if target in found:
                url, digest = found[target]
                blocks += [f"    {processor} do", f'      url "{url}"', f'      sha256 "{digest}"', "    end"]
        if blocks:
            lines += [f"  {system} do", *blocks, "  end", ""]
    return f'''class Promptgate < Formula
  desc "{SUMMARY}"
  homepage "{HOMEPAGE}"
  version "{VERSION}"
  license "Apache-2.0"

{chr(10).join(lines)}
  def install
    bin.install "promptgate"
    (man1/"promptgate.1").write Utils.safe_popen_read(bin/"promptgate", "man")
    generate_completions_from_executable(bin/"promptgate", "completions", shells: [:bash, :zsh, :fish])
  end

  test do
    assert_match version.to_s, shell_output("#{{bin}}/promptgate --version")
    system bin/"promptgate", "init"
    system bin/"promptgate", "check"
  end
end
'''


def winget(url, digest):
    """The three files of a winget manifest 1.6, by their names."""
    head = f"PackageIdentifier: promptgate.promptgate\nPackageVersion: {VERSION}\n"
    tail = "ManifestVersion: 1.6.0\n"
    folder = url.rsplit("/", 1)[1].removesuffix(".zip")
    installer = f"""InstallerType: zip
NestedInstallerType: portable
NestedInstallerFiles:
- RelativeFilePath: {folder}\\promptgate.exe
  PortableCommandAlias: promptgate
Installers:
- Architecture: x64
  InstallerUrl: {url}
  InstallerSha256: {digest.upper()}
ManifestType: installer
"""
    locale = f"""PackageLocale: en-US
Publisher: promptgate
PackageName: promptgate
License: Apache-2.0
ShortDescription: {SUMMARY}
PackageUrl: {HOMEPAGE}
ManifestType: defaultLocale
"""
    version = "DefaultLocale: en-US\nManifestType: version\n"
    return {
        "promptgate.promptgate.yaml": head + version + tail,
        "promptgate.promptgate.installer.yaml": head + installer + tail,
        "promptgate.promptgate.locale.en-US.yaml": head + locale + tail,
    }


def main(dist):
    found = archives(dist / "SHA256SUMS")
    files = {"homebrew/promptgate.rb": formula(found)}
    windows = next((target for target in found if "-windows-" in target), None)
    if windows:
        files |= {f"winget/{name}": text for name, text in winget(*found[windows]).items()}
    for name, text in files.items():
        file = dist / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)


main(Path(sys.argv[1]))
