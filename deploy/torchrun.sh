#!/usr/bin/env bash
# One machine, one service that stays, any number of jobs: deploy/torchrun.sh train.py [arguments]
# It starts a rank for each GPU, or as many as RANKS says.
# Its [[datasets]] are in the file that STREAMER_CONFIG names; local folders and stores of this machine need them.
set -euo pipefail

socket=${STREAMER_SOCKET:-${STREAMER_RUNTIME_DIR:-/tmp/streamer-$(id -u)}/engine.sock}
if ! streamer stat --socket "$socket" --json >/dev/null 2>&1; then
    nohup streamer serve --socket "$socket" >>"${TMPDIR:-/tmp}/streamer-serve.log" 2>&1 &
fi
STREAMER_ENGINE=unix:$socket exec torchrun --standalone --nproc-per-node "${RANKS:-gpu}" "$@"
