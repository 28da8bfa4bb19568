#!/usr/bin/env python3
"""Works while it holds a key, and stops when the lease is lost: hold.py KEY [STEPS]"""
import json, subprocess, sys, threading

KEY, STEPS = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 3
hold = subprocess.Popen(["mongoseal", "hold", KEY, "--json"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
stop = threading.Event()
completed = False


def work(token):
    """Passes the token with each write, and checks `stop` before each step."""
    global completed
    try:
        for step in range(1, STEPS + 1):
            if stop.wait(0.1):
                return
            print(f"step {step} with token {token}", flush=True)
        completed = True
    finally:
        hold.stdin.close()  # The end of its input releases the lease.


worker = None
for line in hold.stdout:
    event = json.loads(line)
    if event["event"] == "granted":
        worker = threading.Thread(target=work, args=(event["token"],))
        worker.start()
    elif event["event"] == "lost":
        stop.set()
stop.set()  # The end of the output: the lease is no longer refreshed.
if worker:
    worker.join()
status = hold.wait()
if status < 0:
    sys.exit(128 - status)  # A signal ended it.
sys.exit(status if status else 0 if completed else 1)
