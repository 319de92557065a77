//! Rate limits of all replicas together.

use std::time::Duration;

use serde_json::json;
use tokio::time::{Instant, timeout};

use super::{bearer, limited};
use crate::support::Client;
use crate::support::replicas::{Replicas, Store};

/// Sends this many lists at once; returns how many were answered.
async fn at_once(client: &Client, count: usize) -> usize {
    let lists = (0..count).map(|_| {
        let client = client.clone();
        tokio::spawn(async move { client.modern("prompts/list", json!({})).await.status })
    });
    let mut passed = 0;
    for list in lists.collect::<Vec<_>>() {
        match list.await.unwrap() {
            200 => passed += 1,
            429 => {}
            status => panic!("{status}"),
        }
    }
    passed
}

#[tokio::test]
#[ignore = "needs redis-server"]
async fn p4_exactly_n_of_ten_n_requests_pass_on_three_replicas() {
    let store = Store::start().await;
    let replicas = Replicas::start(&store.url(), &limited()).await;
    let client = replicas.client().with("Authorization", &bearer(0));
    let mut passed = 0;
    for _ in 0..300 {
        passed += usize::from(client.modern("prompts/list", json!({})).await.status == 200);
    }
    assert_eq!(passed, 30, "one after the other");
    let client = replicas.client().with("Authorization", &bearer(1));
    assert_eq!(at_once(&client, 300).await, 30, "all at once");
    // A legacy client is counted in the same bucket, on each replica.
    for replica in &replicas.replicas {
        let client = replica.client().with("Authorization", &bearer(1));
        let client = client.legacy("2025-06-18").await;
        let list = crate::support::client::request(1, "prompts/list", json!({}));
        let refused = client.post(&list).await;
        assert_eq!(refused.status, 429, "{refused:?}");
        let wait: u64 = refused.header("retry-after").unwrap().parse().unwrap();
        assert!((1..=120).contains(&wait), "{wait}");
    }
}

#[tokio::test]
#[ignore = "needs redis-server"]
async fn p4_a_request_that_one_bucket_refuses_costs_the_others_nothing() {
    let store = Store::start().await;
    let limits = "[[limits]]\nname = \"all\"\nper = []\nrate = \"40/h\"\nburst = 40\n";
    let replicas = Replicas::start(&store.url(), &(limited() + limits)).await;
    let client = |number| replicas.client().with("Authorization", &bearer(number));
    assert_eq!(at_once(&client(0), 100).await, 30);
    assert_eq!(at_once(&client(1), 100).await, 10, "what is left of 40");
}

#[tokio::test]
#[ignore = "needs redis-server"]
async fn p4_leases_of_three_replicas_stay_within_their_bound() {
    let store = Store::start().await;
    let leased = "[cluster]\nlimits = \"leased\"\nlease = \"200ms\"\n";
    // A cell comes free in 120 s: a lease is one cell, so that nothing is taken ahead.
    let replicas = Replicas::start(&store.url(), &(limited() + leased)).await;
    let client = replicas.client().with("Authorization", &bearer(0));
    assert_eq!(at_once(&client, 300).await, 30);
    drop(replicas);

    let fast = "[[limits]]\nname = \"fast\"\nper = []\nrate = \"20/s\"\nburst = 50\n";
    let replicas = Replicas::start(&store.url(), &format!("{leased}{fast}")).await;
    let client = replicas.client();
    let start = Instant::now();
    let mut passed = 0;
    for _ in 0..5 {
        passed += at_once(&client, 150).await;
    }
    let most = 50.0 + (start.elapsed().as_secs_f64() + 0.2) * 20.0;
    assert!((passed as f64) <= most, "{passed} of at most {most}");
    assert!(passed >= 50, "{passed}");
}

#[tokio::test]
#[ignore = "needs redis-server"]
async fn p4_an_empty_bucket_fills_after_the_clock_of_the_store_was_set_back() {
    let store = Store::start().await;
    let fast = "[[limits]]\nname = \"fast\"\nper = []\nrate = \"20/s\"\nburst = 2\n";
    let replicas = Replicas::start(&store.url(), fast).await;
    let client = replicas.client();
    let list = async || client.modern("prompts/list", json!({})).await.status;
    assert_eq!(list().await, 200);
    // To the buckets, the clock now is an hour behind (in ticks of 125 ns).
    let behind = "EVAL \"for _, key in ipairs(redis.call('KEYS', '*')) do \
                  if redis.call('TYPE', key).ok == 'string' then \
                  local later = redis.call('GET', key) + 28800000000 \
                  redis.call('SET', key, string.format('%.0f', later)) end end return 'moved'\" 0";
    let moved = store.command(behind).await;
    assert!(moved.contains("moved"), "{moved}");
    assert_eq!(list().await, 429);
    let refilled = async { while list().await != 200 {} };
    timeout(Duration::from_secs(20), refilled).await.expect("the bucket fills in 100 ms");
}
