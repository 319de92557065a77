#!/bin/bash
# Runs inside a booted container (`packaging/test service`): the Debian package, its unit and its service for real.
set -eux
config=/etc/promptgate/gateway.toml
invocation() { systemctl show --property=InvocationID promptgate; }
healthy() {
    for _ in $(seq 50); do
        ! promptgate health --config "$config" || return 0
        sleep 0.2
    done
    journalctl --no-pager --unit=promptgate
    return 1
}

dpkg --install /promptgate.deb
systemctl is-enabled promptgate
healthy
[ "$(systemctl show --property=User --value promptgate)" = promptgate ]
promptgate get library__explain-code code=x --config "$config" | grep '^Explain this code'
systemctl reload promptgate
first=$(invocation)

dpkg --install /promptgate.deb
healthy
[ "$(invocation)" != "$first" ] # An upgrade restarts.

dpkg --remove promptgate
[ "$(systemctl is-active promptgate)" = inactive ]
dpkg --purge promptgate
[ ! -e /etc/promptgate ] && [ ! -e /var/lib/promptgate ] && ! id promptgate
echo passed
