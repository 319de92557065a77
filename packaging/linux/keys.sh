#!/bin/sh
set -e
# The unit does not start without keys. They are made once; an upgrade keeps them.
secrets=/etc/promptgate/secrets
mkdir -p "$secrets"
chmod 700 "$secrets"
for key in seal_key audit_key; do
    [ -e "$secrets/$key" ] && continue
    (umask 077 && head -c 32 /dev/urandom | base64 >"$secrets/$key.new")
    mv "$secrets/$key.new" "$secrets/$key"
done
