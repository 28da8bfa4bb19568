//! MongoDB becomes unavailable during a run.

use mongoseal::store::Clock;
use mongoseal_test_support::ReplicaSet;

use crate::{
    sandbox::{KEY, STUBBORN, Sandbox, TTL, ended, gone},
    secs,
};

#[tokio::test]
#[ignore = "night: judges seconds"]
async fn a_command_is_ended_before_the_deadline_when_the_database_goes_away() {
    let set = ReplicaSet::start(1).await;
    let sandbox = Sandbox::on(&set, "gone").await;
    let obedient = r#"exec 2>/dev/null; trap 'echo told >"$F/told"; exit 0' TERM; echo $$ >"$F/ids"; while :; do sleep 0.05; done"#;
    for (script, count) in [(obedient, 1), (STUBBORN, 2)] {
        let run = sandbox.run(script).spawn().unwrap();
        let family = sandbox.processes(count).await;
        // Past its first refresh.
        tokio::time::sleep(TTL / 2).await;
        if count == 1 {
            set.pause(0).await;
        } else {
            set.kill(0).await;
        }
        let away = Clock::Boot.now().since_origin();
        let last = gone(&family, TTL + secs(1)).await;
        println!("ended {:?} after the database went away, of {TTL:?}", last - away);
        assert!(last < away + TTL, "{:?}", last - away);
        ended(run).await.says(122, "could not be refreshed in time, so the command was ended");
        std::fs::remove_file(sandbox.file("ids")).unwrap();
        if count == 1 {
            sandbox.lines("told", 1).await;
            set.resume(0).await;
            // Until the set answers again and the lease has expired.
            drop(sandbox.seal.acquire(KEY).wait(secs(30)).await.unwrap());
        }
    }
}

#[tokio::test]
#[ignore = "night: the database must be back before a lease of twenty seconds ends"]
async fn a_command_goes_on_if_the_database_is_back_in_time() {
    let set = ReplicaSet::start(1).await;
    let sandbox = Sandbox::on(&set, "back").await;
    let run =
        sandbox.run(r#"touch "$F/began"; while [ ! -e "$F/end" ]; do sleep 0.05; done; echo done"#).spawn().unwrap();
    sandbox.exists("began").await;
    set.pause(0).await;
    // Longer than from one refresh to the next.
    tokio::time::sleep(TTL / 2).await;
    set.resume(0).await;
    sandbox.is_refreshed().await;
    sandbox.touch("end");
    let run = ended(run).await;
    assert_eq!((run.code, run.stdout.as_str()), (0, "done\n"), "{}", run.stderr);
}
