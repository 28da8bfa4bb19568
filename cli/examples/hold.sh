#!/usr/bin/env bash
# Works while it holds a key, and stops when the lease is lost: hold.sh KEY [STEPS]
set -um # With -m a job has a process group of its own, so that all of it can be killed.
key=$1 steps=${2:-3} worker='' status=1 failed=''

work() { # Passes the token with each write.
    for ((step = 1; step <= steps; step++)); do
        sleep 0.1
        echo "step $step with token $1"
    done
}
stop() { [[ -z $worker ]] || kill -KILL -- "-$worker" 2>/dev/null; }
trap stop EXIT

coproc HOLD { exec mongoseal hold; }
hold=$HOLD_PID
# Copies for the worker. As long as it has them, the lease is kept.
exec {events}<&"${HOLD[0]}" {requests}>&"${HOLD[1]}"
exec {HOLD[0]}<&- {HOLD[1]}>&-
echo "{\"id\":\"lease\",\"do\":\"acquire\",\"key\":\"$key\"}" >&"$requests"
while read -r line <&"$events"; do
    case $line in
    *'"event":"granted"'*)
        [[ $line =~ \"token\":([0-9]+) ]] || exit 1
        {
            if work "${BASH_REMATCH[1]}"; then id=done; else id=failed; fi
            echo "{\"id\":\"$id\",\"do\":\"release\",\"lease\":\"lease\"}" >&"$requests"
        } &
        worker=$!
        ;;
    *'"event":"released"'*'"id":"done"'* | *'"id":"done"'*'"event":"released"'*) status=0 && break ;;
    *'"event":"released"'*) break ;;
    *'"event":"lost"'*) status=122 failed=$line && break ;;
    *'"event":"error"'*) failed=$line && break ;;
    esac
done
# Also at the end of the output: the lease is no longer refreshed.
((status == 0)) || stop
[[ -z $failed ]] || echo "$failed" >&2
exec {requests}>&- # The end of its input ends the program.
wait "$hold" || exit
exit "$status"
