# shellcheck shell=bash
# Shared by the scripts of this folder, which source it: names, versions, and tools.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
umask 022 # Modes get into packages.

version=$(sed -n '/^\[workspace.package\]/,/^version/s/^version = "\(.*\)"/\1/p' Cargo.toml)
homepage=$(sed -n 's/^repository = "\(.*\)"/\1/p' Cargo.toml)
export version homepage

# All times in packages: of the commit, so that two builds are equal (reproducible-builds.org).
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export SOURCE_DATE_EPOCH

dist=$PWD/dist                # what is published
stage=$PWD/target/packaging   # binaries and what is put into packages
tools=$stage/tools
mkdir -p "$dist" "$stage"

# The target of the compiler for an architecture.
declare -A target_of=([x86_64]=x86_64-unknown-linux-musl [aarch64]=aarch64-unknown-linux-musl)

# The architectures whose binaries `packaging/binary` has built.
staged() {
    local arch
    for arch in x86_64 aarch64; do [ ! -x "$stage/$arch/promptgate" ] || echo "$arch"; done
}

sbom_of() { echo "$dist/promptgate-$version-${target_of[$1]}.cdx.json"; }

# runnable: the binary that runs here; completions and manual pages are the same everywhere.
runnable() { echo "$stage/$(uname -m)/promptgate"; }

# cargo_tool NAME VERSION: hardly optimized, since it runs for seconds, and that build for minutes.
cargo_tool() {
    [ -x "$tools/bin/$1" ] || CARGO_PROFILE_DEV_DEBUG=0 CARGO_PROFILE_DEV_OPT_LEVEL=1 CARGO_TARGET_DIR=$tools/target \
        cargo install --quiet --locked --debug --root "$tools" "$1@$2"
    PATH=$tools/bin:$PATH
}

# python_tools: those of requirements.txt, in an environment of their own.
python_tools() {
    [ -x "$tools/python/bin/uv" ] || {
        python3 -m venv "$tools/python"
        "$tools/python/bin/pip" install --quiet --disable-pip-version-check --no-deps \
            -r packaging/requirements.txt
    }
    PATH=$tools/python/bin:$PATH
}

# pack FOLDER FILE: a tar.gz of a folder below the stage that depends on the contents alone.
pack() {
    tar --create --directory "$stage" --sort=name --mtime="@$SOURCE_DATE_EPOCH" --mode=u=rwX,go=rX \
        --owner=0 --group=0 --numeric-owner --format=gnu "$1" | gzip --no-name --best >"$2"
}

# documents: manual pages, completions, and a commented configuration as `promptgate init` writes it.
documents() {
    local out=$stage/documents binary command
    binary=$(runnable)
    rm -rf "$out"
    mkdir -p "$out/man" "$out/completions" "$out/config"
    "$binary" man >"$out/man/promptgate.1"
    for command in $("$binary" --help | sed -n '/^Commands:/,/^$/s/^  \([a-z]\+\) .*/\1/p'); do
        [ "$command" = help ] || "$binary" man "$command" >"$out/man/promptgate-$command.1"
    done
    # As each shell finds them.
    "$binary" completions bash >"$out/completions/promptgate"
    "$binary" completions zsh >"$out/completions/_promptgate"
    "$binary" completions fish >"$out/completions/promptgate.fish"
    (cd "$out/config" && "$binary" init >/dev/null)
}

# system ARCH: the files of the packages for systems, below the stage in `system`, which Cargo.toml lists.
system() {
    local out=$stage/system
    rm -rf "$out"
    mkdir -p "$out/units" "$out/deb"
    cp -R "$stage/documents/"{man,completions,config} "$stage/$1/promptgate" "$out"
    # The editor finds the schema where the package puts it.
    sed -i '1s|\./|/usr/share/promptgate/|' "$out/config/gateway.toml"
    # The example is for a binary in /usr/local, and has no user of its own.
    sed -e '1,/^$/d' -e 's|/usr/local/bin/|/usr/bin/|' -e '/^DynamicUser=/d' \
        examples/systemd/promptgate.service >"$out/units/promptgate.service"
    cp packaging/linux/promptgate.sysusers "$out/units"
    cp packaging/linux/deb/postrm "$out/deb"
    { cat packaging/linux/keys.sh && echo '#DEBHELPER#'; } >"$out/deb/postinst"
    cat packaging/linux/keys.sh packaging/linux/rpm/post.sh >"$out/post.sh"
}
