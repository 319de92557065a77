#!/bin/sh
systemctl daemon-reload || true
[ "$1" -lt 1 ] || systemctl try-restart promptgate.service || true
