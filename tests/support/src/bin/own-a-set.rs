//! Owns a replica set until its input ends or it is killed: for the test that no server outlives its owner.

use mongodb::bson::doc;
use mongoseal_test_support::ReplicaSet;

#[tokio::main]
async fn main() {
    let set = ReplicaSet::builder().members(3).proxied().start().await;
    for (member, id) in set.process_ids().into_iter().enumerate() {
        let options = set.admin(member, doc! { "getCmdLineOpts": 1 }).await.expect("a member says how it was started");
        let storage = options.get_document("parsed").and_then(|parsed| parsed.get_document("storage"));
        println!("server {id} in {}", storage.and_then(|storage| storage.get_str("dbPath")).expect("with a path"));
    }
    println!("ready");
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink()).expect("input can be read");
}
