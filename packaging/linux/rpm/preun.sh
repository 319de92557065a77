#!/bin/sh
[ "$1" -gt 0 ] || systemctl --no-reload disable --now promptgate.service || true
