# shellcheck shell=sh
# After keys.sh, in the same script.
systemd-sysusers promptgate.conf
systemctl daemon-reload || true
# The administrator enables it; `preset` follows what the system says about new services.
[ "$1" -gt 1 ] || systemctl --no-reload preset promptgate.service || true
